// The kernels of the ops that normalize channels of pixels, and groups of
// channels of images. Whatever the number of threads, sums are of the same
// blocks: results do not depend on it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/channels.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/shape.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/simd/kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// A weight of each channel; `missing` where there is none.
std::vector<float> Weights(const Tensor& given, int64_t channels,
                           float missing) {
  if (given.NumElements() == 0) return std::vector<float>(channels, missing);
  return {Floats(given), Floats(given) + channels};
}

class LayerNormalizationOp : public tensorflow::OpKernel {
 public:
  explicit LayerNormalizationOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckRank("LayerNormalization", x));
    const Rows of(x);
    const int64_t n = of.channels;
    OP_REQUIRES_OK(ctx, CheckVector("LayerNormalization", "gamma",
                                    ctx->input(1), n, true));
    OP_REQUIRES_OK(
        ctx, CheckVector("LayerNormalization", "beta", ctx->input(2), n, true));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    if (y->NumElements() == 0) return;
    const std::vector<float> gamma = Weights(ctx->input(1), n, 1.0f);
    const std::vector<float> beta = Weights(ctx->input(2), n, 0.0f);
    const float* const maps = Floats(x);
    float* const result = y->flat<float>().data();
    InParallel(ctx, of.rows, 4 * n, [&](int64_t begin, int64_t end) {
      simd::Best().channels.normalize_by(maps + begin * n, gamma.data(),
                                         beta.data(), end - begin, n, epsilon_,
                                         result + begin * n);
    });
  }

 private:
  float epsilon_;
};

class LayerNormalizationGradientOp : public tensorflow::OpKernel {
 public:
  explicit LayerNormalizationGradientOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &dy = ctx->input(0), &x = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank("LayerNormalizationGradient", dy));
    OP_REQUIRES_OK(ctx, CheckSame("LayerNormalizationGradient", dy, x));
    const Rows of(dy);
    const int64_t n = of.channels;
    OP_REQUIRES_OK(ctx, CheckVector("LayerNormalizationGradient", "gamma",
                                    ctx->input(2), n, true));
    TensorShape shape;
    OP_REQUIRES_OK(ctx,
                   MakeShape("LayerNormalizationGradient", {2, n}, &shape));
    Tensor parts, *dx = nullptr, *sums = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0, 1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, shape, &sums));
    if (dx->NumElements() == 0) {
      sums->flat<float>().setZero();
      return;
    }
    const std::vector<float> gamma = Weights(ctx->input(2), n, 1.0f);
    const float *const given = Floats(dy), *const maps = Floats(x);
    float* const result = dx->flat<float>().data();
    OP_REQUIRES_OK(ctx,
                   InBlocks(ctx, of, 6, &parts,
                            [&](int64_t first, int64_t count, float* vectors) {
                              simd::Best().channels.normalize_gradient(
                                  given + first * n, maps + first * n,
                                  gamma.data(), count, n, epsilon_,
                                  result + first * n, vectors, vectors + n);
                            }));
    AddUp(parts, 0, parts.dim_size(0), sums->flat<float>().data());
  }

 private:
  float epsilon_;
};

// An op that normalizes groups of channels, of each image by itself.
class OfGroups : public WithActivation {
 public:
  explicit OfGroups(tensorflow::OpKernelConstruction* ctx)
      : WithActivation(ctx) {
    OP_REQUIRES_OK(ctx, ReadGroups(ctx, "GroupNormalization", &groups_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

 protected:
  // Of images, which have so many pixels of channels, in blocks.
  struct Images : Rows {
    explicit Images(const Tensor& x)
        : Rows(x),
          images(x.dims() > 1 ? x.dim_size(0) : 1),
          pixels(images > 0 ? rows / images : 0) {}

    int64_t images, pixels;
  };

  // By what a group of an image is normalized.
  struct Moments {
    double mean, variance;
  };

  absl::Status Check(const char* op, const Tensor& x, const Tensor& gamma,
                     const Tensor& beta) const {
    TF_RETURN_IF_ERROR(CheckRank(op, x));
    const int64_t n = x.dim_size(x.dims() - 1);
    if (n % groups_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          op, ": Expected a number of groups by which ", n,
          " channels can be divided. Received ", groups_, " groups"));
    }
    TF_RETURN_IF_ERROR(CheckVector(op, "gamma", gamma, n, true));
    return CheckVector(op, "beta", beta, n, true);
  }

  float Inverse(double variance) const {
    return 1 / std::sqrt(static_cast<float>(variance) + epsilon_);
  }

  // What each channel of an image is scaled by and what is then added, of its
  // groups' means and variances.
  void Affine(const float* means, const float* variances,
              const std::vector<float>& gamma, const std::vector<float>& beta,
              float* scale, float* offset) const {
    const int64_t n = gamma.size(), each = n / groups_;
    for (int64_t c = 0; c < n; ++c) {
      const int64_t g = c / each;
      scale[c] = gamma[c] * Inverse(variances[g]);
      offset[c] = beta[c] - means[g] * scale[c];
    }
  }

  int64_t groups_;
  float epsilon_;
};

class GroupNormalizationOp : public OfGroups {
 public:
  using OfGroups::OfGroups;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES_OK(
        ctx, Check("GroupNormalization", x, ctx->input(1), ctx->input(2)));
    const Images of(x);
    const int64_t n = of.channels;
    TensorShape each;
    OP_REQUIRES_OK(
        ctx, MakeShape("GroupNormalization", {of.images, groups_}, &each));
    Tensor parts, *y = nullptr, *mean = nullptr, *variance = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, each, &mean));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, each, &variance));
    if (x.NumElements() == 0) {
      mean->flat<float>().setZero();
      variance->flat<float>().setZero();
      ctx->set_output(0, x);
      return;
    }
    const std::vector<float> gamma = Weights(ctx->input(1), n, 1.0f);
    const std::vector<float> beta = Weights(ctx->input(2), n, 0.0f);
    const float* const maps = Floats(x);
    OP_REQUIRES_OK(ctx, InBlocks(
                            ctx, of, 1, &parts,
                            [&](int64_t first, int64_t count, float* vectors) {
                              channels::Moments(maps + first * n, count, n,
                                                vectors, vectors + n);
                            },
                            of.images));
    float* const means = mean->flat<float>().data();
    float* const variances = variance->flat<float>().data();
    Combine(of, parts, means, variances);
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    float* const result = y->flat<float>().data();
    InParallel(
        ctx, of.images, 2 * of.pixels * n, [&](int64_t begin, int64_t end) {
          std::vector<float> scale(n), offset(n);
          for (int64_t i = begin; i < end; ++i) {
            Affine(means + i * groups_, variances + i * groups_, gamma, beta,
                   scale.data(), offset.data());
            const channels::Scaled scaled({scale.data()}, offset.data(), n,
                                          activation_);
            scaled.Run({maps}, i * of.pixels, (i + 1) * of.pixels, result);
          }
        });
  }

 private:
  // Of the moments of channels in blocks those of groups (Chan, Golub and
  // LeVeque 1979).
  void Combine(const Images& of, const Tensor& parts, float* means,
               float* variances) const {
    const int64_t n = of.channels, width = n / groups_;
    const int64_t each = channels::RowsPerBlock(n);
    const int64_t blocks = parts.dim_size(0) / of.images;
    for (int64_t i = 0; i < of.images; ++i) {
      for (int64_t g = 0; g < groups_; ++g) {
        const auto for_each = [&](const auto& add) {
          for (int64_t b = 0; b < blocks; ++b) {
            const double count = std::min(each, of.pixels - b * each);
            const float* const vectors =
                Floats(parts) + 2 * n * (i * blocks + b);
            for (int64_t c = g * width; c < (g + 1) * width; ++c) {
              add(count, vectors[c], vectors[n + c]);
            }
          }
        };
        const double numbers = of.pixels * width;
        double mean = 0, squares = 0;
        for_each([&](double count, double part, double) {
          mean += count / numbers * part;
        });
        for_each([&](double count, double part, double within) {
          squares += within + count * (part - mean) * (part - mean);
        });
        means[i * groups_ + g] = mean;
        variances[i * groups_ + g] = squares / numbers;
      }
    }
  }
};

class GroupNormalizationGradientOp : public OfGroups {
 public:
  using OfGroups::OfGroups;

  void Compute(OpKernelContext* ctx) override {
    const char* const op = "GroupNormalizationGradient";
    const Tensor &dy = ctx->input(0), &x = ctx->input(1);
    const Tensor &mean = ctx->input(4), &variance = ctx->input(5);
    OP_REQUIRES_OK(ctx, Check(op, dy, ctx->input(2), ctx->input(3)));
    OP_REQUIRES_OK(ctx, CheckSame(op, dy, x));
    const Images of(dy);
    TensorShape each, shape;
    OP_REQUIRES_OK(ctx, MakeShape(op, {of.images, groups_}, &each));
    OP_REQUIRES(
        ctx, mean.shape() == each && variance.shape() == each,
        absl::InvalidArgumentError(absl::StrCat(
            op, ": Expected means and variances of shape ", each.DebugString(),
            ". Received shapes ", mean.shape().DebugString(), " and ",
            variance.shape().DebugString())));
    const int64_t n = of.channels, width = n / groups_;
    OP_REQUIRES_OK(ctx, MakeShape(op, {2, n}, &shape));
    Tensor parts, *dx = nullptr, *sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, shape, &sums));
    if (dy.NumElements() == 0) {
      sums->flat<float>().setZero();
      ctx->set_output(0, dy);
      return;
    }
    const std::vector<float> gamma = Weights(ctx->input(2), n, 1.0f);
    const std::vector<float> beta = Weights(ctx->input(3), n, 0.0f);
    // For each image: its means by channel, and by what maps are scaled.
    std::vector<float> means(of.images * n), scales(of.images * n);
    std::vector<float> offsets(of.images * n);
    for (int64_t i = 0; i < of.images; ++i) {
      Affine(Floats(mean) + i * groups_, Floats(variance) + i * groups_, gamma,
             beta, &scales[i * n], &offsets[i * n]);
      for (int64_t c = 0; c < n; ++c) {
        means[i * n + c] = Floats(mean)[i * groups_ + c / width];
      }
    }
    const auto through = [&](int64_t i) {
      return channels::Through(&scales[i * n], &offsets[i * n], n, activation_);
    };
    const float *const given = Floats(dy), *const maps = Floats(x);
    OP_REQUIRES_OK(ctx, InBlocks(
                            ctx, of, 2, &parts,
                            [&](int64_t first, int64_t count, float* vectors) {
                              const int64_t i = first / of.pixels;
                              through(i).Sums(given + first * n,
                                              maps + first * n, &means[i * n],
                                              count, vectors, vectors + n);
                            },
                            of.images));
    // dx = scale g + by_maps x + by_all: as for one image of a batch, with sums
    // of gamma g and of gamma g times normalized maps over all of a group.
    std::vector<float> by_maps(of.images * n), by_all(of.images * n);
    std::vector<double> total(2 * n, 0.0);
    std::vector<float> own(2 * n);
    const int64_t blocks = parts.dim_size(0) / of.images;
    const double numbers = of.pixels * width;
    for (int64_t i = 0; i < of.images; ++i) {
      AddUp(parts, i * blocks, (i + 1) * blocks, own.data());
      for (int64_t g = 0; g < groups_; ++g) {
        const int64_t at = i * groups_ + g;
        const double inverse = Inverse(Floats(variance)[at]);
        double all = 0, along = 0;
        for (int64_t c = g * width; c < (g + 1) * width; ++c) {
          all += gamma[c] * own[c];
          along += gamma[c] * own[n + c] * inverse;
          total[c] += own[c];
          total[n + c] += own[n + c] * inverse;
        }
        const double slope = -inverse * inverse * along / numbers;
        for (int64_t c = g * width; c < (g + 1) * width; ++c) {
          by_maps[i * n + c] = slope;
          by_all[i * n + c] =
              -inverse * all / numbers - slope * Floats(mean)[at];
        }
      }
    }
    std::copy(total.begin(), total.end(), sums->flat<float>().data());
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0, 1}, 0, dy.shape(), &dx));
    float* const result = dx->flat<float>().data();
    InParallel(
        ctx, of.images, 3 * of.pixels * n, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            through(i).Gradient(given, maps, &by_maps[i * n], &by_all[i * n],
                                i * of.pixels, (i + 1) * of.pixels, result);
          }
        });
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>LayerNormalization").Device(tensorflow::DEVICE_CPU),
    LayerNormalizationOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>LayerNormalizationGradient").Device(tensorflow::DEVICE_CPU),
    LayerNormalizationGradientOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>GroupNormalization").Device(tensorflow::DEVICE_CPU),
    GroupNormalizationOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>GroupNormalizationGradient").Device(tensorflow::DEVICE_CPU),
    GroupNormalizationGradientOp);

}  // namespace
}  // namespace tf_convpar
