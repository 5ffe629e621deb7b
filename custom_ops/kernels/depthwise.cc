// The kernel of the op on depthwise convolutions. Whatever the number of
// threads, sums are of the same parts: results do not depend on it.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/depthwise/kernel_gradient.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Fewer images than that are cut into bands of rows, so that threads have
// something to do.
constexpr int64_t kManyImages = 8, kBands = 4;

class DepthwiseKernelGradientOp : public tensorflow::OpKernel {
 public:
  explicit DepthwiseKernelGradientOp(tensorflow::OpKernelConstruction* ctx)
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
                    "DepthwiseKernelGradient: Expected a window of two sizes "
                    "and a stride, each at least 1"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &dy = ctx->input(1);
    depthwise::Sizes of;
    OP_REQUIRES_OK(ctx, Read(x, dy, &of));
    Tensor* dk = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(
                 0, TensorShape({window_[0], window_[1], of.channels}), &dk));
    const int64_t images = x.dim_size(0), size = dk->NumElements();
    const int64_t bands = images < kManyImages ? kBands : 1;
    const int64_t rows = (of.out_height + bands - 1) / bands;
    Tensor parts;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_temp(tensorflow::DT_FLOAT,
                                TensorShape({images * bands, size}), &parts));
    float* const sums = parts.flat<float>().data();
    const float *const from = x.flat<float>().data(), *const by =
                                                          dy.flat<float>()
                                                              .data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    using Pool = tensorflow::thread::ThreadPool;
    // Some four products in a cycle.
    const int64_t cycles = std::max<int64_t>(1, rows * of.out_width * size / 4);
    ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        images * bands, Pool::SchedulingParams::Adaptive(cycles),
        [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const int64_t image = part / bands, first = part % bands * rows;
            std::fill_n(sums + part * size, size, 0.0f);
            depthwise::AddRows(of, from + image * pixels, by + image * maps,
                               std::min(first, of.out_height),
                               std::min(first + rows, of.out_height),
                               sums + part * size);
          }
        });
    std::vector<double> total(size, 0.0);
    for (int64_t part = 0; part < images * bands; ++part) {
      for (int64_t i = 0; i < size; ++i) total[i] += sums[part * size + i];
    }
    std::copy(total.begin(), total.end(), dk->flat<float>().data());
  }

 private:
  absl::Status Read(const Tensor& x, const Tensor& dy,
                    depthwise::Sizes* of) const {
    if (x.dims() != 4 || dy.dims() != 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          "DepthwiseKernelGradient: Expected images and gradients of shape "
          "[batch, height, width, channels]. Received ",
          x.shape().DebugString(), " and ", dy.shape().DebugString()));
    }
    of->channels = x.dim_size(3);
    of->stride = stride_;
    Axis(x.dim_size(1), window_[0], &of->out_height, &of->top);
    Axis(x.dim_size(2), window_[1], &of->out_width, &of->left);
    of->height = x.dim_size(1), of->width = x.dim_size(2);
    of->window_height = window_[0], of->window_width = window_[1];
    const TensorShape expected(
        {x.dim_size(0), of->out_height, of->out_width, of->channels});
    if (dy.shape() == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "DepthwiseKernelGradient: Expected gradients of shape ",
        expected.DebugString(), ", as of the feature maps of images of shape ",
        x.shape().DebugString(), ". Received ", dy.shape().DebugString()));
  }

  // As TensorFlow pads.
  void Axis(int64_t size, int64_t window, int64_t* out, int64_t* before) const {
    const int64_t stride = stride_;
    if (same_) {
      *out = (size + stride - 1) / stride;
      const int64_t zeros =
          std::max<int64_t>(0, (*out - 1) * stride + window - size);
      *before = zeros / 2;
    } else {
      *out = std::max<int64_t>(0, (size - window + stride) / stride);
      *before = 0;
    }
  }

  std::vector<int32_t> window_;
  int32_t stride_;
  bool same_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>DepthwiseKernelGradient").Device(tensorflow::DEVICE_CPU),
    DepthwiseKernelGradientOp);

}  // namespace
}  // namespace tf_convpar
