// The kernels of the ops on pooling.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/window.h"
#include "custom_ops/pooling/pool.h"
#include "custom_ops/simd/kernels.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Pixels of an image that a window sees, at most.
int64_t Seen(const windows::Sizes& of) {
  return std::min(of.window_height, of.height) *
         std::min(of.window_width, of.width);
}

class MaxPoolGradientOp : public tensorflow::OpKernel {
 public:
  explicit MaxPoolGradientOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, window_.Read(ctx, "MaxPoolGradient"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &y = ctx->input(1), &dy = ctx->input(2);
    windows::Sizes of;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, window_.Over(x, &of, &shape));
    OP_REQUIRES(
        ctx, y.shape() == shape && dy.shape() == shape,
        absl::InvalidArgumentError(absl::StrCat(
            "MaxPoolGradient: Expected maxima and gradients of shape ",
            shape.DebugString(), ", as of images of shape ",
            x.shape().DebugString(), ". Received ", y.shape().DebugString(),
            " and ", dy.shape().DebugString())));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x.shape(), &dx));
    if (x.NumElements() == 0) return;
    const float *const images = x.flat<float>().data(),
                       *const maxima = y.flat<float>().data(),
                       *const given = dy.flat<float>().data();
    float* const to = dx->flat<float>().data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    // A float a cycle.
    InParallel(ctx, x.dim_size(0), maps * Seen(of),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   simd::Best().pooling.max_gradient(
                       of, images + i * pixels, maxima + i * maps,
                       given + i * maps, to + i * pixels);
                 }
               });
  }

 private:
  Window window_;
};

class PoolOp : public tensorflow::OpKernel {
 public:
  explicit PoolOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string kind;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("kind", &kind));
    OP_REQUIRES_OK(ctx, window_.Read(ctx, "Pool"));
    const windows::Padded& moves = window_.moves();
    const bool zeros = moves.top + moves.bottom + moves.left + moves.right > 0;
    OP_REQUIRES(
        ctx, !zeros || (kind == "max" && !moves.same),
        absl::InvalidArgumentError(absl::StrCat(
            "Pool: Expected zeros around images with kind=\"max\" and "
            "padding=\"VALID\" only. Received: kind=\"",
            kind, "\", padding=\"", moves.same ? "SAME" : "VALID", "\"")));
    kind_ = kind == "average" ? pooling::Kind::kMean
            : zeros           ? pooling::Kind::kLargestWithZeros
                              : pooling::Kind::kLargest;
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    windows::Sizes of;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, window_.Over(x, &of, &shape));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    const float* const images = x.flat<float>().data();
    float* const to = y->flat<float>().data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    // Rows of all feature maps; four floats a cycle.
    InParallel(
        ctx, x.dim_size(0) * of.out_height,
        of.out_width * of.channels * Seen(of) / 4 + 1,
        [&](int64_t begin, int64_t end) {
          while (begin < end) {
            const int64_t number = begin / of.out_height;
            const int64_t row = begin % of.out_height;
            const int64_t until = std::min(of.out_height, row + end - begin);
            simd::Best().pooling.pool(of, kind_, images + number * pixels, row,
                                      until, to + number * maps);
            begin += until - row;
          }
        });
  }

 private:
  Window window_;
  pooling::Kind kind_;
};

REGISTER_KERNEL_BUILDER(Name("TfConvpar>Pool").Device(tensorflow::DEVICE_CPU),
                        PoolOp);

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>MaxPoolGradient").Device(tensorflow::DEVICE_CPU),
    MaxPoolGradientOp);

}  // namespace
}  // namespace tf_convpar
