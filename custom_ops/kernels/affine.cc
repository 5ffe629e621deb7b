// The kernel of the op that takes a normalization for a factor and a summand of
// each channel.

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class AffineOp : public tensorflow::OpKernel {
 public:
  explicit AffineOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &mean = ctx->input(0), &variance = ctx->input(1);
    const Tensor &gamma = ctx->input(2), &beta = ctx->input(3);
    const int64_t channels = mean.NumElements();
    for (const Tensor* vector : {&mean, &variance, &gamma, &beta}) {
      const bool may_miss = vector == &gamma || vector == &beta;
      const int64_t size = vector->NumElements();
      OP_REQUIRES(
          ctx,
          vector->dims() == 1 && (size == channels || (may_miss && size == 0)),
          absl::InvalidArgumentError(absl::StrCat(
              "Affine: Expected means, variances, gamma and beta of shape [",
              channels, "], or [0] for no gamma or beta. Received ",
              mean.shape().DebugString(), ", ", variance.shape().DebugString(),
              ", ", gamma.shape().DebugString(), " and ",
              beta.shape().DebugString())));
    }
    Tensor *scale = nullptr, *offset = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, mean.shape(), &scale));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, mean.shape(), &offset));
    const auto m = mean.flat<float>(), v = variance.flat<float>();
    const auto g = gamma.flat<float>(), b = beta.flat<float>();
    auto s = scale->flat<float>(), o = offset->flat<float>();
    for (int64_t c = 0; c < channels; ++c) {
      const float inverse = 1.0f / std::sqrt(v(c) + epsilon_);
      s(c) = g.size() > 0 ? g(c) * inverse : inverse;
      o(c) = (b.size() > 0 ? b(c) : 0.0f) - m(c) * s(c);
    }
  }

 private:
  float epsilon_;
};

REGISTER_KERNEL_BUILDER(Name("TfConvpar>Affine").Device(tensorflow::DEVICE_CPU),
                        AffineOp);

}  // namespace
}  // namespace tf_convpar
