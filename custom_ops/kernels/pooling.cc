// The kernel of the op on pooling.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/window.h"
#include "custom_ops/pooling/max_gradient.h"
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

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>MaxPoolGradient").Device(tensorflow::DEVICE_CPU),
    MaxPoolGradientOp);

}  // namespace
}  // namespace tf_convpar
