// The kernels of the ops on depthwise convolutions. Whatever the number of
// threads, sums are of the same parts: results do not depend on it.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/shape.h"
#include "custom_ops/kernels/window.h"
#include "custom_ops/ops/bounds.h"
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

// Fewer images than that are cut into bands of rows, so that threads have
// something to do.
constexpr int64_t kManyImages = 8, kBands = 4;

class DepthwiseKernelGradientOp : public tensorflow::OpKernel {
 public:
  explicit DepthwiseKernelGradientOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, window_.Read(ctx, "DepthwiseKernelGradient"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &dy = ctx->input(1);
    windows::Sizes of;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, window_.Over(x, &of, &shape));
    OP_REQUIRES(
        ctx, dy.shape() == shape,
        absl::InvalidArgumentError(absl::StrCat(
            "DepthwiseKernelGradient: Expected gradients of shape ",
            shape.DebugString(), ", as of the feature maps of images of shape ",
            x.shape().DebugString(), ". Received ", dy.shape().DebugString())));
    TensorShape window, each;
    OP_REQUIRES_OK(
        ctx,
        MakeShape("DepthwiseKernelGradient",
                  {of.window_height, of.window_width, of.channels}, &window));
    Tensor* dk = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, window, &dk));
    if (x.NumElements() == 0 || dy.NumElements() == 0) {
      dk->flat<float>().setZero();
      return;
    }
    const int64_t images = x.dim_size(0), size = dk->NumElements();
    const int64_t bands = images < kManyImages ? kBands : 1;
    const int64_t rows = (of.out_height + bands - 1) / bands;
    OP_REQUIRES_OK(ctx, MakeShape("DepthwiseKernelGradient",
                                  {images * bands, size}, &each));
    Tensor parts, all;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tensorflow::DT_FLOAT, each, &parts));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_temp(tensorflow::DT_DOUBLE, window, &all));
    float* const sums = parts.flat<float>().data();
    const float *const from = x.flat<float>().data(), *const by =
                                                          dy.flat<float>()
                                                              .data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    // Some four products in a cycle.
    InParallel(
        ctx, images * bands, rows * of.out_width * size / 4,
        [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const int64_t image = part / bands, first = part % bands * rows;
            std::fill_n(sums + part * size, size, 0.0f);
            simd::Best().depthwise.kernel_gradient(
                of, from + image * pixels, by + image * maps,
                std::min(first, of.out_height),
                std::min(first + rows, of.out_height), sums + part * size);
          }
        });
    double* const total = all.flat<double>().data();
    std::fill_n(total, size, 0.0);
    for (int64_t part = 0; part < images * bands; ++part) {
      for (int64_t i = 0; i < size; ++i) total[i] += sums[part * size + i];
    }
    std::copy_n(total, size, dk->flat<float>().data());
  }

 private:
  Window window_;
};

class DepthwiseOp : public tensorflow::OpKernel {
 public:
  explicit DepthwiseOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadPadded(ctx, "Depthwise", &moves_));
    std::string activation;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &activation));
    activation_ = channels::Named(activation);
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &kernel = ctx->input(1),
                 &bias = ctx->input(2);
    OP_REQUIRES(
        ctx,
        x.dims() == 4 && kernel.dims() == 3 &&
            kernel.dim_size(2) == x.dim_size(3) && bias.dims() == 1 &&
            bias.dim_size(0) == x.dim_size(3),
        absl::InvalidArgumentError(absl::StrCat(
            "Depthwise: Expected images [batch, height, width, channels], a "
            "kernel [height, width, channels] and a bias [channels]. Received ",
            x.shape().DebugString(), ", ", kernel.shape().DebugString(),
            " and ", bias.shape().DebugString())));
    const int64_t channels = x.dim_size(3);
    windows::Sizes of;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, Over("Depthwise", moves_, x.shape(), channels,
                             {kernel.dim_size(0), kernel.dim_size(1)}, channels,
                             &of, &shape));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    const float *const by = kernel.flat<float>().data(), *const plus =
                                                             bias.flat<float>()
                                                                 .data();
    // Images of no pixels have no address to count from, and none is read.
    const float* const from =
        x.NumElements() > 0 ? x.flat<float>().data() : plus;
    float* const to = y->flat<float>().data();
    const int64_t pixels = of.height * of.width * of.channels;
    const int64_t maps = of.out_height * of.out_width * of.channels;
    const int64_t rows = of.out_height;
    // Some four products in a cycle, and what it takes to read and write.
    const int64_t cycles = of.out_width * of.channels *
                           (of.window_height * of.window_width + 8) / 4;
    InParallel(
        ctx, x.dim_size(0) * rows, cycles, [&](int64_t begin, int64_t end) {
          while (begin < end) {
            const int64_t image = begin / rows, row = begin % rows;
            const int64_t last = std::min(rows, row + end - begin);
            simd::Best().depthwise.forward(of, activation_,
                                           from + image * pixels, by, plus, row,
                                           last, to + image * maps);
            begin += last - row;
          }
        });
  }

 private:
  windows::Padded moves_;
  channels::Activation activation_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>Depthwise").Device(tensorflow::DEVICE_CPU), DepthwiseOp);

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>DepthwiseKernelGradient").Device(tensorflow::DEVICE_CPU),
    DepthwiseKernelGradientOp);

}  // namespace
}  // namespace tf_convpar
