// The kernels of the ops on pooling.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/window.h"
#include "custom_ops/pooling/max_gradient.h"
#include "custom_ops/pooling/pool.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

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
    InParallel(ctx, x.dim_size(0), maps * of.window_height * of.window_width,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   pooling::MaxGradient(of, images + i * pixels,
                                        maxima + i * maps, given + i * maps,
                                        to + i * pixels);
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
    OP_REQUIRES_OK(ctx, ctx->GetAttr("window", &size_));
    OP_REQUIRES_OK(ctx, ReadPadded(ctx, "Pool", &window_));
    OP_REQUIRES(ctx, size_.size() == 2 && size_[0] > 0 && size_[1] > 0,
                absl::InvalidArgumentError(
                    "Pool: Expected a window of two sizes, each at least 1"));
    const bool zeros =
        window_.top + window_.bottom + window_.left + window_.right > 0;
    OP_REQUIRES(ctx, !zeros || (kind == "max" && !window_.same),
                absl::InvalidArgumentError(
                    "Pool: Expected zeros beside the image with the largest of "
                    "each window, and without another padding"));
    kind_ = kind == "average" ? pooling::Kind::kMean
            : zeros           ? pooling::Kind::kLargestWithZeros
                              : pooling::Kind::kLargest;
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    OP_REQUIRES(ctx, x.dims() == 4,
                absl::InvalidArgumentError(absl::StrCat(
                    "Pool: Expected images [batch, height, width, channels]. "
                    "Received ",
                    x.shape().DebugString())));
    const windows::Sizes of = window_.Over(x.dim_size(1), x.dim_size(2),
                                           x.dim_size(3), size_[0], size_[1]);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0,
                                  TensorShape({x.dim_size(0), of.out_height,
                                               of.out_width, of.channels}),
                                  &y));
    if (y->NumElements() == 0) return;
    const float* const images = x.flat<float>().data();
    float* const to = y->flat<float>().data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    // Rows of all feature maps; four floats a cycle.
    InParallel(ctx, x.dim_size(0) * of.out_height,
               of.out_width * of.channels * size_[0] * size_[1] / 4 + 1,
               [&](int64_t begin, int64_t end) {
                 while (begin < end) {
                   const int64_t number = begin / of.out_height;
                   const int64_t row = begin % of.out_height;
                   const int64_t until =
                       std::min(of.out_height, row + end - begin);
                   pooling::Pool(of, kind_, images + number * pixels, row,
                                 until, to + number * maps);
                   begin += until - row;
                 }
               });
  }

 private:
  std::vector<int32_t> size_;
  windows::Padded window_;
  pooling::Kind kind_;
};

REGISTER_KERNEL_BUILDER(Name("TfConvpar>Pool").Device(tensorflow::DEVICE_CPU),
                        PoolOp);

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>MaxPoolGradient").Device(tensorflow::DEVICE_CPU),
    MaxPoolGradientOp);

}  // namespace
}  // namespace tf_convpar
