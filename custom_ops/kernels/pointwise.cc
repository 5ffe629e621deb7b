// The kernel of pointwise convolutions: products of matrices, by panels of the
// kernel that may be kept.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/remembered.h"
#include "custom_ops/kernels/workspace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_convpar {
namespace {

using bilinear::Passes;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Rows whose results the nearest caches still hold when they are scaled.
constexpr int64_t kBand = 112;

const float* Floats(const Tensor& x) { return x.flat<float>().data(); }

class PointwiseOp : public tensorflow::OpKernel {
 public:
  explicit PointwiseOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string name;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &name));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("remember", &remember_));
    activation_ = channels::Named(name);
    OP_REQUIRES(ctx, bilinear::BestPasses() != nullptr,
                absl::InvalidArgumentError(
                    absl::StrCat("Pointwise: Expected ", bilinear::kWidest,
                                 " to name an instruction set")));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &kernel = ctx->input(1);
    const Tensor &scale = ctx->input(2), &offset = ctx->input(3);
    OP_REQUIRES(
        ctx,
        x.dims() >= 1 && kernel.dims() == 2 &&
            kernel.dim_size(0) == x.dim_size(x.dims() - 1),
        absl::InvalidArgumentError(absl::StrCat(
            "Pointwise: Expected images [.., channels] and a kernel [channels, "
            "filters]. Received ",
            x.shape().DebugString(), " and ", kernel.shape().DebugString())));
    const int64_t depth = kernel.dim_size(0), filters = kernel.dim_size(1);
    for (const Tensor* vector : {&scale, &offset}) {
      OP_REQUIRES(ctx,
                  vector->dims() == 1 && (vector->dim_size(0) == filters ||
                                          vector->dim_size(0) == 0),
                  absl::InvalidArgumentError(absl::StrCat(
                      "Pointwise: Expected a scale and an offset of ", filters,
                      " values or none. Received ", scale.shape().DebugString(),
                      " and ", offset.shape().DebugString())));
    }
    TensorShape shape = x.shape();
    shape.set_dim(x.dims() - 1, filters);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    const Passes& passes = *bilinear::BestPasses();
    const int64_t width = passes.set.panel();
    const int64_t panels = (filters + width - 1) / width;
    std::shared_ptr<const float> packed;
    if (remember_) packed = remembered_.Find(kernel);
    if (packed == nullptr) {
      const std::shared_ptr<float> made = Lasting(panels * width * depth);
      OP_REQUIRES(ctx, made != nullptr,
                  absl::ResourceExhaustedError(
                      "Pointwise: Expected memory for the kernel's panels. "
                      "Received none"));
      passes.pack(Floats(kernel), depth, filters, made.get());
      packed = made;
      if (remember_) remembered_.Keep(kernel, packed);
    }
    Run(ctx, {y->NumElements() / filters, depth, filters, 0, panels}, Floats(x),
        packed.get(), Scaling(scale, offset, filters), y->flat<float>().data());
  }

 private:
  // What follows the product; none if nothing does.
  std::optional<channels::Scaled> Scaling(const Tensor& scale,
                                          const Tensor& offset,
                                          int64_t filters) const {
    const bool scales = scale.NumElements() > 0;
    const bool adds = offset.NumElements() > 0;
    if (!scales && !adds && activation_ == channels::Activation::kLinear) {
      return std::nullopt;
    }
    const std::vector<float> ones(scales ? 0 : filters, 1.0f);
    const std::vector<float> zeros(adds ? 0 : filters, 0.0f);
    return channels::Scaled({scales ? Floats(scale) : ones.data()},
                            adds ? Floats(offset) : zeros.data(), filters,
                            activation_);
  }

  static void Run(OpKernelContext* ctx, const bilinear::ProductPart& all,
                  const float* x, const float* panels,
                  const std::optional<channels::Scaled>& scaling, float* y) {
    const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
    const Passes& passes = *bilinear::BestPasses();
    using Pool = tensorflow::thread::ThreadPool;
    const auto scale = [&](int64_t begin, int64_t end) {
      if (scaling) scaling->Run({y}, begin, end, y);
    };
    // Some thirty products in a cycle.
    const int64_t cycles = all.depth * passes.set.panel() / 30 + 1;
    if (all.rows >= kBand * workers.num_threads) {
      workers.workers->ParallelFor(
          all.rows, Pool::SchedulingParams::Adaptive(cycles * all.panels),
          [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r += kBand) {
              bilinear::ProductPart part = all;
              part.rows = std::min(kBand, end - r);
              passes.product(part, x + r * all.depth, panels,
                             y + r * all.columns);
              scale(r, r + part.rows);
            }
          });
      return;
    }
    workers.workers->ParallelFor(
        all.panels, Pool::SchedulingParams::Adaptive(cycles * all.rows),
        [&](int64_t begin, int64_t end) {
          bilinear::ProductPart part = all;
          part.first_panel = begin, part.panels = end - begin;
          passes.product(part, x, panels, y);
        });
    scale(0, all.rows);
  }

  bool remember_;
  channels::Activation activation_;
  Remembered remembered_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>Pointwise").Device(tensorflow::DEVICE_CPU), PointwiseOp);

}  // namespace
}  // namespace tf_convpar
