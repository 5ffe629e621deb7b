// The kernels of the ops on channels. Whatever the number of threads, sums are
// of the same blocks: results do not depend on it.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/in_parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

const float* Floats(const Tensor& tensor) {
  return tensor.flat<float>().data();
}

// Maps as rows of channels.
struct Rows {
  explicit Rows(const Tensor& x)
      : channels(x.dim_size(x.dims() - 1)),
        rows(channels > 0 ? x.NumElements() / channels : 0) {}

  int64_t channels, rows;
};

absl::Status CheckRank(absl::string_view op, const Tensor& x) {
  if (x.dims() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": Expected feature maps with channels last. Received a scalar"));
}

absl::Status CheckVector(absl::string_view op, absl::string_view name,
                         const Tensor& vector, int64_t channels) {
  if (vector.dims() == 1 && vector.dim_size(0) == channels) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": Expected ", name, " of shape [", channels,
                   "], a number for each channel. Received shape ",
                   vector.shape().DebugString()));
}

absl::Status CheckSame(absl::string_view op, const Tensor& x,
                       const Tensor& other) {
  if (x.shape() == other.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": Expected feature maps of one shape. Received shapes ",
      x.shape().DebugString(), " and ", other.shape().DebugString()));
}

// Two vectors for each block of rows: `run(first, count, vectors)`.
template <typename Run>
absl::Status InBlocks(OpKernelContext* ctx, const Rows& of, int maps,
                      Tensor* found, const Run& run) {
  const int64_t each = channels::RowsPerBlock(of.channels);
  const int64_t blocks = (of.rows + each - 1) / each;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(
      tensorflow::DT_FLOAT, TensorShape({blocks, 2, of.channels}), found));
  float* const vectors = found->flat<float>().data();
  InParallel(ctx, blocks, maps * each * of.channels,
             [&](int64_t begin, int64_t end) {
               for (int64_t b = begin; b < end; ++b) {
                 const int64_t first = b * each;
                 run(first, std::min(each, of.rows - first),
                     vectors + 2 * b * of.channels);
               }
             });
  return absl::OkStatus();
}

// The sum of what blocks have, two vectors each.
void AddUp(const Tensor& parts, int64_t channels, float* sums) {
  std::vector<double> total(2 * channels, 0.0);
  for (int64_t b = 0; b < parts.dim_size(0); ++b) {
    const float* const vectors = Floats(parts) + 2 * channels * b;
    for (int64_t i = 0; i < 2 * channels; ++i) total[i] += vectors[i];
  }
  std::copy(total.begin(), total.end(), sums);
}

class ChannelMomentsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckRank("ChannelMoments", x));
    const Rows of(x);
    const int64_t n = of.channels;
    Tensor parts, *moments = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2, n}), &moments));
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
      // Of no rows both are 0.
      moments[n + c] = of.rows > 0 ? squares[c] / of.rows : 0.0;
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
    AddUp(parts, n, sums->flat<float>().data());
  }
};

// An op with an activation.
class WithActivation : public tensorflow::OpKernel {
 public:
  explicit WithActivation(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    std::string name;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &name));
    activation_ = channels::Named(name);
  }

 protected:
  channels::Activation activation_ = channels::Activation::kLinear;
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
    AddUp(parts, n, sums->flat<float>().data());
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

}  // namespace
}  // namespace tf_convpar
