// The kernel of convolutions for inference: products of matrices, by panels of
// the kernel that may be kept, and what follows in the same pass.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/joined.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/instruction_set.h"
#include "custom_ops/kernels/product.h"
#include "custom_ops/kernels/remembered.h"
#include "custom_ops/kernels/window.h"
#include "custom_ops/kernels/workspace.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/simd/kernels.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using channels::Joined;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

const float* Floats(const Tensor& x) { return x.flat<float>().data(); }

class ConvolutionOp : public tensorflow::OpKernel {
 public:
  explicit ConvolutionOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    std::string name;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &name));
    activation_ = channels::Named(name);
    OP_REQUIRES_OK(ctx, ctx->GetAttr("image_activation", &name));
    image_activation_ = channels::Named(name);
    OP_REQUIRES_OK(ctx, ctx->GetAttr("image_epsilon", &image_epsilon_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("parts", &parts_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("remember", &remember_));
    OP_REQUIRES_OK(ctx, ReadPadded(ctx, "Convolution", &moves_));
    OP_REQUIRES_OK(ctx, CheckInstructionSet());
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &kernel = ctx->input(parts_);
    const Tensor &scale = ctx->input(parts_ + 1),
                 &offset = ctx->input(parts_ + 2);
    const Tensor& summand = ctx->input(parts_ + 3);
    int64_t channels = 0;
    bool alike = x.dims() == 4 && kernel.dims() == 4;
    for (int i = 0; alike && i < parts_; ++i) {
      const Tensor& part = ctx->input(i);
      alike = part.dims() == 4 && part.dim_size(3) <= kMostPixels;
      for (int axis = 0; alike && axis < 3; ++axis) {
        alike = part.dim_size(axis) == x.dim_size(axis);
      }
      if (alike) channels += part.dim_size(3);
    }
    OP_REQUIRES(
        ctx, alike && kernel.dim_size(2) == channels,
        absl::InvalidArgumentError(absl::StrCat(
            "Convolution: Expected images [batch, height, width, channels], or "
            "parts of their channels, and a kernel [height, width, channels, "
            "filters]. Received ",
            x.shape().DebugString(), " of ", parts_, " parts with ", channels,
            " channels, and ", kernel.shape().DebugString())));
    const int64_t filters = kernel.dim_size(3);
    for (const Tensor* vector : {&scale, &offset}) {
      OP_REQUIRES(
          ctx,
          vector->dims() == 1 &&
              (vector->dim_size(0) == filters || vector->dim_size(0) == 0),
          absl::InvalidArgumentError(absl::StrCat(
              "Convolution: Expected a scale and an offset of ", filters,
              " values or none. Received ", scale.shape().DebugString(),
              " and ", offset.shape().DebugString())));
    }
    windows::Sizes of;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, Over("Convolution", moves_, x.shape(), channels,
                             {kernel.dim_size(0), kernel.dim_size(1)}, filters,
                             &of, &shape));
    const bool adds = summand.dims() != 1 || summand.NumElements() > 0;
    OP_REQUIRES(ctx, !adds || summand.shape() == shape,
                absl::InvalidArgumentError(absl::StrCat(
                    "Convolution: Expected a summand of the shape of the "
                    "feature maps, ",
                    shape.DebugString(), ". Received ",
                    summand.shape().DebugString())));
    Tensor* y = nullptr;
    // Where nobody else needs the summand, the feature maps take its place.
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({parts_ + 3}, 0, shape, &y));
    if (y->NumElements() == 0) return;
    if (channels == 0) {
      EndSumsOfNothing(offset, adds ? &summand : nullptr, filters, y);
      return;
    }
    const int64_t depth = kernel.NumElements() / filters;
    const int64_t width = simd::Best().set.panel();
    const int64_t panels = (filters + width - 1) / width;
    std::vector<float> padded;
    if (offset.NumElements() > 0) {
      padded.assign(panels * width, 0.0f);
      std::copy_n(Floats(offset), filters, padded.data());
    }
    Product product = {of,
                       y->NumElements() / filters,
                       filters,
                       nullptr,
                       nullptr,
                       {padded.empty() ? nullptr : padded.data(),
                        adds ? Floats(summand) : nullptr, activation_},
                       y->flat<float>().data()};
    channels::Joined::Change change;
    OP_REQUIRES_OK(ctx, ChangeOf(ctx, channels, &change));
    std::vector<Joined::Part> parts;
    for (int i = 0; i < parts_; ++i) {
      const Tensor& part = ctx->input(i);
      parts.push_back({Floats(part), part.dim_size(3)});
    }
    const Joined images(parts, change, x.dim_size(0), of.height * of.width);
    OP_REQUIRES(
        ctx, product.OfPixels() || images.Untouched(),
        absl::InvalidArgumentError(absl::StrCat(
            "Convolution: Expected windows of one pixel and strides of "
            "1 for images in parts, or that are changed first. "
            "Received a kernel ",
            kernel.shape().DebugString(), " and a stride of ", of.stride)));
    product.images = &images;
    if (Streams(product)) {
      OP_REQUIRES_OK(
          ctx,
          MultiplyStreamed(ctx, product, Floats(kernel),
                           scale.NumElements() == 0 ? nullptr : Floats(scale)));
      return;
    }
    const std::shared_ptr<const float> packed =
        Packed(kernel, scale, filters, panels * width * depth);
    OP_REQUIRES(ctx, packed != nullptr, NoMemory(panels * width * depth));
    product.panels = packed.get();
    OP_REQUIRES_OK(ctx, Multiply(ctx, product));
  }

 private:
  // What is made of images without channels.
  void EndSumsOfNothing(const Tensor& offset, const Tensor* summand,
                        int64_t filters, Tensor* y) const {
    if (summand == nullptr) y->flat<float>().setZero();
    const float* const from = Floats(summand == nullptr ? *y : *summand);
    const std::vector<float> ones(filters, 1.0f), zeros(filters);
    const channels::Scaled end(
        {ones.data()},
        offset.NumElements() == 0 ? zeros.data() : Floats(offset), filters,
        activation_);
    end.Run({from}, 0, y->NumElements() / filters, y->flat<float>().data());
  }

  // Panels of the kernel, each filter times its factor; null without memory
  // for so many floats.
  std::shared_ptr<const float> Packed(const Tensor& kernel, const Tensor& scale,
                                      int64_t filters, int64_t floats) {
    if (remember_) {
      std::shared_ptr<const float> found = remembered_.Find({kernel, scale});
      if (found != nullptr) return found;
    }
    const std::shared_ptr<float> made = Lasting(floats);
    if (made == nullptr) return nullptr;
    simd::Best().bilinear.pack(
        Floats(kernel), kernel.NumElements() / filters, filters,
        scale.NumElements() == 0 ? nullptr : Floats(scale), made.get());
    if (remember_) remembered_.Keep({kernel, scale}, made);
    return made;
  }

  // What is done to the images first.
  absl::Status ChangeOf(OpKernelContext* ctx, int64_t channels,
                        Joined::Change* found) const {
    const Tensor& scale = ctx->input(parts_ + 4);
    const Tensor& offset = ctx->input(parts_ + 5);
    const int64_t images = ctx->input(0).dim_size(0);
    const auto is_vector = [&](const Tensor& x) {
      const int64_t size = x.NumElements();
      return x.dims() == 1 && (size == channels || size == 0);
    };
    const bool of_each = scale.dims() == 2 && scale.dim_size(0) == images &&
                         scale.dim_size(1) == channels;
    if ((!is_vector(scale) && !of_each) || !is_vector(offset)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Convolution: Expected an image_scale [", channels, "], [", images,
          ",", channels, "] or of no values, and an image_offset [", channels,
          "] or of no values. Received ", scale.shape().DebugString(), " and ",
          offset.shape().DebugString()));
    }
    *found = {scale.NumElements() == 0 ? nullptr : Floats(scale),
              scale.dims() == 2,
              offset.NumElements() == 0 ? nullptr : Floats(offset),
              image_activation_, image_epsilon_};
    return absl::OkStatus();
  }

  int parts_;
  float image_epsilon_;
  bool remember_;
  windows::Padded moves_;
  channels::Activation activation_, image_activation_;
  Remembered remembered_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>Convolution").Device(tensorflow::DEVICE_CPU),
    ConvolutionOp);

}  // namespace
}  // namespace tf_convpar
