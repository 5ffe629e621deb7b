// The kernels of the ops on channels. Whatever the number of threads, sums are
// of the same blocks: results do not depend on it.

#include "custom_ops/kernels/channels.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/shape.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {

using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status CheckRank(absl::string_view op, const Tensor& x) {
  if (x.dims() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": Expected feature maps with channels last. Received a scalar"));
}

absl::Status CheckVector(absl::string_view op, absl::string_view name,
                         const Tensor& vector, int64_t channels,
                         bool may_miss) {
  const int64_t size = vector.NumElements();
  if (vector.dims() == 1 && (size == channels || (may_miss && size == 0))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": Expected ", name, " of shape [", channels,
                   "], a number for each channel", may_miss ? ", or [0]" : "",
                   ". Received shape ", vector.shape().DebugString()));
}

absl::Status CheckSame(absl::string_view op, const Tensor& x,
                       const Tensor& other) {
  if (x.shape() == other.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": Expected feature maps of one shape. Received shapes ",
      x.shape().DebugString(), " and ", other.shape().DebugString()));
}

void AddUp(const Tensor& parts, int64_t begin, int64_t end, float* sums) {
  const int64_t numbers = parts.dim_size(1) * parts.dim_size(2);
  std::vector<double> total(numbers, 0.0);
  for (int64_t b = begin; b < end; ++b) {
    const float* const vectors = Floats(parts) + numbers * b;
    for (int64_t i = 0; i < numbers; ++i) total[i] += vectors[i];
  }
  std::copy(total.begin(), total.end(), sums);
}

namespace {

class ChannelMomentsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckRank("ChannelMoments", x));
    const Rows of(x);
    const int64_t n = of.channels;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape("ChannelMoments", {2, n}, &shape));
    Tensor parts, *moments = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &moments));
    if (x.NumElements() == 0) {
      moments->flat<float>().setZero();
      return;
    }
    OP_REQUIRES_OK(ctx,
                   InBlocks(ctx, of, 1, &parts,
                            [&](int64_t first, int64_t count, float* vectors) {
                              channels::Moments(Floats(x) + first * n, count, n,
                                                vectors, vectors + n);
                            }));
    Combine(of, parts, moments->flat<float>().data());
  }

 private:
  // Of parts those of the whole (Chan, Golub and LeVeque 1979).
  static void Combine(const Rows& of, const Tensor& parts, float* moments) {
    const int64_t n = of.channels, each = channels::RowsPerBlock(n);
    std::vector<double> mean(n, 0.0), squares(n, 0.0);
    const auto for_each = [&](const auto& add) {
      const float* vectors = Floats(parts);
      for (int64_t first = 0; first < of.rows; first += each) {
        const double count = std::min(each, of.rows - first);
        for (int64_t c = 0; c < n; ++c) {
          add(c, count, vectors[c], vectors[n + c]);
        }
        vectors += 2 * n;
      }
    };
    for_each([&](int64_t c, double count, double part, double) {
      mean[c] += count / of.rows * part;
    });
    for_each([&](int64_t c, double count, double part, double within) {
      const double apart = part - mean[c];
      squares[c] += within + count * apart * apart;
    });
    for (int64_t c = 0; c < n; ++c) {
      moments[c] = mean[c];
      moments[n + c] = squares[c] / of.rows;
    }
  }
};

class ChannelSumsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &y = ctx->input(0), &x = ctx->input(1), &mean = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckRank("ChannelSums", y));
    OP_REQUIRES_OK(ctx, CheckSame("ChannelSums", y, x));
    const Rows of(y);
    const int64_t n = of.channels;
    OP_REQUIRES_OK(ctx, CheckVector("ChannelSums", "means", mean, n));
    Tensor parts, *sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2, n}), &sums));
    OP_REQUIRES_OK(
        ctx, InBlocks(ctx, of, 2, &parts,
                      [&](int64_t first, int64_t count, float* vectors) {
                        channels::Sums(Floats(y) + first * n,
                                       Floats(x) + first * n, Floats(mean),
                                       count, n, vectors, vectors + n);
                      }));
    AddUp(parts, 0, parts.dim_size(0), sums->flat<float>().data());
  }
};

class ActivatedSumsOp : public WithActivation {
 public:
  using WithActivation::WithActivation;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &dy = ctx->input(0), &x = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank("ActivatedSums", dy));
    OP_REQUIRES_OK(ctx, CheckSame("ActivatedSums", dy, x));
    const Rows of(dy);
    const int64_t n = of.channels;
    const char* const names[] = {"means", "scale", "offset"};
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(
          ctx, CheckVector("ActivatedSums", names[i], ctx->input(2 + i), n));
    }
    const float* const mean = Floats(ctx->input(2));
    const channels::Through through(Floats(ctx->input(3)),
                                    Floats(ctx->input(4)), n, activation_);
    Tensor parts, *sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2, n}), &sums));
    OP_REQUIRES_OK(ctx,
                   InBlocks(ctx, of, 2, &parts,
                            [&](int64_t first, int64_t count, float* vectors) {
                              through.Sums(Floats(dy) + first * n,
                                           Floats(x) + first * n, mean, count,
                                           vectors, vectors + n);
                            }));
    AddUp(parts, 0, parts.dim_size(0), sums->flat<float>().data());
  }
};

class ActivatedGradientOp : public WithActivation {
 public:
  using WithActivation::WithActivation;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &dy = ctx->input(0), &x = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank("ActivatedGradient", dy));
    OP_REQUIRES_OK(ctx, CheckSame("ActivatedGradient", dy, x));
    const Rows of(dy);
    const int64_t n = of.channels;
    const char* const names[] = {"scale", "offset", "by_maps", "by_all"};
    const float* vectors[4];
    for (int i = 0; i < 4; ++i) {
      const Tensor& vector = ctx->input(2 + i);
      OP_REQUIRES_OK(ctx,
                     CheckVector("ActivatedGradient", names[i], vector, n));
      vectors[i] = Floats(vector);
    }
    const channels::Through through(vectors[0], vectors[1], n, activation_);
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0, 1}, 0, dy.shape(), &dx));
    const float *const given = Floats(dy), *const maps = Floats(x);
    float* const result = dx->flat<float>().data();
    InParallel(ctx, of.rows, 3 * n, [&](int64_t begin, int64_t end) {
      through.Gradient(given, maps, vectors[2], vectors[3], begin, end, result);
    });
  }
};

class BiasedGradientOp : public WithActivation {
 public:
  using WithActivation::WithActivation;

  void Compute(OpKernelContext* ctx) override {
    const Tensor &dy = ctx->input(0), &x = ctx->input(1);
    const Tensor& bias = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckRank("BiasedGradient", dy));
    OP_REQUIRES_OK(ctx, CheckSame("BiasedGradient", dy, x));
    const Rows of(dy);
    const int64_t n = of.channels;
    OP_REQUIRES_OK(ctx, CheckVector("BiasedGradient", "bias", bias, n));
    Tensor parts, *dx = nullptr, *sums = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({0, 1}, 0, dy.shape(), &dx));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, bias.shape(), &sums));
    const float *const given = Floats(dy), *const maps = Floats(x);
    float* const result = dx->flat<float>().data();
    const channels::Biased biased(Floats(bias), n, activation_);
    OP_REQUIRES_OK(
        ctx, InBlocks(ctx, of, 3, &parts,
                      [&](int64_t first, int64_t count, float* vectors) {
                        biased.Gradient(given + first * n, maps + first * n,
                                        count, result + first * n, vectors);
                        std::fill_n(vectors + n, n, 0.0f);
                      }));
    std::vector<float> both(2 * n);
    AddUp(parts, 0, parts.dim_size(0), both.data());
    std::copy_n(both.begin(), n, sums->flat<float>().data());
  }
};

class ScaleChannelsOp : public WithActivation {
 public:
  using WithActivation::WithActivation;

  void Compute(OpKernelContext* ctx) override {
    OpInputList maps, scales;
    OP_REQUIRES_OK(ctx, ctx->input_list("maps", &maps));
    OP_REQUIRES_OK(ctx, ctx->input_list("scales", &scales));
    OP_REQUIRES(ctx, maps.size() <= 2,
                absl::InvalidArgumentError(absl::StrCat(
                    "ScaleChannels: Expected one or two maps. Received ",
                    maps.size())));
    const Tensor& offset = ctx->input(maps.size() + scales.size());
    OP_REQUIRES_OK(ctx, CheckRank("ScaleChannels", maps[0]));
    const Rows of(maps[0]);
    const int64_t n = of.channels;
    OP_REQUIRES_OK(ctx, CheckVector("ScaleChannels", "offsets", offset, n));
    std::vector<const float*> data, factors;
    std::vector<int> may_become;
    for (int i = 0; i < maps.size(); ++i) {
      OP_REQUIRES_OK(ctx, CheckSame("ScaleChannels", maps[0], maps[i]));
      OP_REQUIRES_OK(ctx, CheckVector("ScaleChannels", "scales", scales[i], n));
      data.push_back(Floats(maps[i]));
      factors.push_back(Floats(scales[i]));
      may_become.push_back(i);
    }
    const channels::Scaled scaled(factors, Floats(offset), n, activation_);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output(
                            may_become, 0, maps[0].shape(), &y));
    float* const result = y->flat<float>().data();
    InParallel(ctx, of.rows, (data.size() + 1) * n,
               [&](int64_t begin, int64_t end) {
                 scaled.Run(data, begin, end, result);
               });
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ChannelMoments").Device(tensorflow::DEVICE_CPU),
    ChannelMomentsOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ChannelSums").Device(tensorflow::DEVICE_CPU),
    ChannelSumsOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ScaleChannels").Device(tensorflow::DEVICE_CPU),
    ScaleChannelsOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ActivatedSums").Device(tensorflow::DEVICE_CPU),
    ActivatedSumsOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ActivatedGradient").Device(tensorflow::DEVICE_CPU),
    ActivatedGradientOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>BiasedGradient").Device(tensorflow::DEVICE_CPU),
    BiasedGradientOp);

}  // namespace
}  // namespace tf_convpar
