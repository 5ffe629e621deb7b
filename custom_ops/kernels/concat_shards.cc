#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/kernels/device_copy.h"
#include "custom_ops/kernels/shape.h"
#include "custom_ops/kernels/shard_copy.h"
#include "custom_ops/ops/messages.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using tensorflow::OpInputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

bool Compatible(const TensorShape& a, const TensorShape& b, int axis) {
  if (a.dims() != b.dims()) return false;
  for (int d = 0; d < a.dims(); ++d) {
    if (d != axis && a.dim_size(d) != b.dim_size(d)) return false;
  }
  return true;
}

// `Copy` is ShardCopy, or for a GPU DeviceCopy.
template <typename Copy>
class ConcatShardsOp : public tensorflow::OpKernel {
 public:
  explicit ConcatShardsOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES(ctx, axis_ == -1 || axis_ == 1, BadAxis("ConcatShards", axis_));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    OpInputList shards;
    OP_REQUIRES_OK(ctx, ctx->input_list("shards", &shards));
    const TensorShape& shape = shards[0].shape();
    for (int i = 0; i < shards.size(); ++i) {
      const int rank = shards[i].dims();
      OP_REQUIRES(ctx, rank >= kMinRank && rank <= kMaxRank,
                  BadRank("ConcatShards", absl::StrCat("shard ", i),
                          shards[i].shape().DebugString()));
    }
    const Layout layout(shape, axis_);
    int64_t width = 0;
    for (int i = 0; i < shards.size(); ++i) {
      OP_REQUIRES(ctx, Compatible(shape, shards[i].shape(), layout.axis),
                  BadShard(axis_, 0, shape.DebugString(), i,
                           shards[i].shape().DebugString()));
      const int64_t more = shards[i].dim_size(layout.axis);
      OP_REQUIRES(ctx, more <= std::numeric_limits<int64_t>::max() - width,
                  absl::InvalidArgumentError(absl::StrCat(
                      "ConcatShards: Expected a sum of widths below 2^63. "
                      "Received: ",
                      width, " and ", more, " for shard ", i)));
      width += more;
    }
    const auto dtype = ctx->expected_output_dtype(0);
    for (const Tensor& shard : shards) {
      // All others are of zero width: nothing to do.
      if (shard.dim_size(layout.axis) == width && shard.dtype() == dtype) {
        ctx->set_output(0, shard);
        return;
      }
    }
    auto sizes = shape.dim_sizes();
    sizes[layout.axis] = width;
    TensorShape joined;
    OP_REQUIRES_OK(ctx, MakeShape("ConcatShards", sizes, &joined));
    Tensor* value = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, joined, &value));
    Copy copy(ShardCopy::kJoin, layout, *value);
    for (const Tensor& shard : shards) copy.Add(shard);
    copy.Run(ctx);
  }

 private:
  int axis_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ConcatShards").Device(tensorflow::DEVICE_CPU),
    ConcatShardsOp<ShardCopy>);
#if TF_CONVPAR_CUDA
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ConcatShards").Device(tensorflow::DEVICE_GPU),
    ConcatShardsOp<DeviceCopy>);
#endif

}  // namespace
}  // namespace tf_convpar
