#include "custom_ops/kernels/device_copy.h"

#if TF_CONVPAR_CUDA

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/moves.h"
#include "custom_ops/cuda/numbers.h"
#include "custom_ops/kernels/shard_copy.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "xla/stream_executor/stream.h"

namespace tf_convpar {
namespace {

char* Data(const tensorflow::Tensor& tensor) {
  // Only outputs are written to; inputs share the type to share the loop.
  return const_cast<char*>(tensor.tensor_data().data());
}

cuda::Dtype DtypeOf(const tensorflow::Tensor& tensor) {
  switch (tensor.dtype()) {
    case tensorflow::DT_HALF:
      return cuda::Dtype::kHalf;
    case tensorflow::DT_BFLOAT16:
      return cuda::Dtype::kBfloat16;
    case tensorflow::DT_FLOAT:
      return cuda::Dtype::kFloat;
    default:
      return cuda::Dtype::kDouble;
  }
}

}  // namespace

DeviceCopy::DeviceCopy(ShardCopy::Direction direction, const Layout& layout,
                       const tensorflow::Tensor& whole)
    : layout_(layout) {
  moves_.whole = Data(whole);
  moves_.outer = layout.outer;
  moves_.row = 0;
  moves_.direction = direction == ShardCopy::kJoin ? cuda::Direction::kJoin
                                                   : cuda::Direction::kCut;
  moves_.dtype = DtypeOf(whole);
}

void DeviceCopy::Add(const tensorflow::Tensor& shard) {
  const int64_t size = shard.dim_size(layout_.axis) * layout_.inner;
  if (size == 0) return;
  cuda::Piece piece;
  piece.data = Data(shard);
  piece.start = moves_.row;
  piece.size = size;
  piece.dtype = DtypeOf(shard);
  pieces_.push_back(piece);
  moves_.row += size;
}

void DeviceCopy::Run(tensorflow::OpKernelContext* ctx) const {
  if (layout_.outer == 0) return;
  // No header of CUDA is needed for the stream, nor Eigen's device for GPUs.
  void* const stream =
      ctx->op_device_context()->stream()->platform_specific_handle().stream;
  ForEachTable(moves_, pieces_, [&](const cuda::Moves& moves) {
    const char* const problem = cuda::Launch(moves, stream);
    OP_REQUIRES(ctx, problem == nullptr,
                absl::InternalError(absl::StrCat(
                    "The kernel that joins and cuts shards was not launched: ",
                    problem)));
  });
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUDA
