#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "custom_ops/kernels/device_copy.h"
#include "custom_ops/kernels/shard_copy.h"
#include "custom_ops/ops/messages.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

// `Copy` is ShardCopy, or for a GPU DeviceCopy.
template <typename Copy>
class SplitShardsOp : public tensorflow::OpKernel {
 public:
  explicit SplitShardsOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sizes", &sizes_));
    OP_REQUIRES(ctx, axis_ == -1 || axis_ == 1, BadAxis("SplitShards", axis_));
    OP_REQUIRES(ctx, static_cast<int>(sizes_.size()) == ctx->num_outputs(),
                BadCount(sizes_.size(), ctx->num_outputs()));
    for (size_t i = 0; i < sizes_.size(); ++i) {
      OP_REQUIRES(ctx, sizes_[i] >= 0, BadSize(i, sizes_[i]));
    }
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    const Tensor& value = ctx->input(0);
    OP_REQUIRES(ctx, value.dims() >= kMinRank && value.dims() <= kMaxRank,
                BadRank("SplitShards", "value", value.shape().DebugString()));
    const Layout layout(value.shape(), axis_);
    const int64_t width = value.dim_size(layout.axis);
    TensorShape shape = value.shape();
    size_t bad;
    uint64_t end;
    if (FindBadEnd(sizes_, width, &bad, &end)) {
      // Too large a size is not one of a shape.
      auto sizes = shape.dim_sizes();
      sizes[layout.axis] = sizes_[bad];
      ctx->CtxFailure(
          BadSum(axis_, width, shape.DebugString(), sizes_, bad, end,
                 absl::StrCat("[", absl::StrJoin(sizes, ","), "]")));
      return;
    }
    Copy copy(ShardCopy::kCut, layout, value);
    bool forwarded = false;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const auto dtype = ctx->expected_output_dtype(i);
      if (sizes_[i] == width && dtype == value.dtype()) {
        // All others are of zero width: nothing to copy.
        ctx->set_output(i, value);
        forwarded = true;
        continue;
      }
      shape.set_dim(layout.axis, sizes_[i]);
      Tensor* shard = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, shape, &shard));
      copy.Add(*shard);
    }
    if (!forwarded) copy.Run(ctx);
  }

 private:
  int axis_;
  std::vector<int64_t> sizes_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>SplitShards").Device(tensorflow::DEVICE_CPU),
    SplitShardsOp<ShardCopy>);
#if TF_CONVPAR_CUDA
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>SplitShards").Device(tensorflow::DEVICE_GPU),
    SplitShardsOp<DeviceCopy>);
#endif

}  // namespace
}  // namespace tf_convpar
