// The kernel of the op on pooling.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/pooling/max_gradient.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class MaxPoolGradientOp : public tensorflow::OpKernel {
 public:
  explicit MaxPoolGradientOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("window", &window_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("stride", &stride_));
    std::string padding;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("padding", &padding));
    same_ = padding == "SAME";
    OP_REQUIRES(ctx,
                window_.size() == 2 && std::min(window_[0], window_[1]) > 0 &&
                    stride_ > 0,
                absl::InvalidArgumentError(
                    "MaxPoolGradient: Expected a window of two sizes and a "
                    "stride, each at least 1"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &y = ctx->input(1), &dy = ctx->input(2);
    windows::Sizes of;
    OP_REQUIRES_OK(ctx, Read(x, y, dy, &of));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, x.shape(), &dx));
    if (x.NumElements() == 0) return;
    const float *const images = x.flat<float>().data(),
                       *const maxima = y.flat<float>().data(),
                       *const given = dy.flat<float>().data();
    float* const to = dx->flat<float>().data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    using Pool = tensorflow::thread::ThreadPool;
    // A float a cycle.
    const int64_t cycles =
        std::max<int64_t>(1, maps * of.window_height * of.window_width);
    ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        x.dim_size(0), Pool::SchedulingParams::Adaptive(cycles),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            pooling::MaxGradient(of, images + i * pixels, maxima + i * maps,
                                 given + i * maps, to + i * pixels);
          }
        });
  }

 private:
  absl::Status Read(const Tensor& x, const Tensor& y, const Tensor& dy,
                    windows::Sizes* of) const {
    if (x.dims() != 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          "MaxPoolGradient: Expected images of shape [batch, height, width, "
          "channels]. Received ",
          x.shape().DebugString()));
    }
    of->channels = x.dim_size(3);
    of->stride = stride_;
    windows::Along(x.dim_size(1), window_[0], stride_, same_, &of->out_height,
                   &of->top);
    windows::Along(x.dim_size(2), window_[1], stride_, same_, &of->out_width,
                   &of->left);
    of->height = x.dim_size(1), of->width = x.dim_size(2);
    of->window_height = window_[0], of->window_width = window_[1];
    const TensorShape expected(
        {x.dim_size(0), of->out_height, of->out_width, of->channels});
    if (y.shape() == expected && dy.shape() == expected) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "MaxPoolGradient: Expected maxima and gradients of shape ",
        expected.DebugString(), ", as of images of shape ",
        x.shape().DebugString(), ". Received ", y.shape().DebugString(),
        " and ", dy.shape().DebugString()));
  }

  std::vector<int32_t> window_;
  int32_t stride_;
  bool same_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>MaxPoolGradient").Device(tensorflow::DEVICE_CPU),
    MaxPoolGradientOp);

}  // namespace
}  // namespace tf_convpar
