// What ShardCopy does, on a GPU.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_DEVICE_COPY_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_DEVICE_COPY_H_

#include <vector>

#include "custom_ops/cuda/moves.h"
#include "custom_ops/kernels/shard_copy.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_convpar {

class DeviceCopy {
 public:
  // As those of ShardCopy.
  DeviceCopy(ShardCopy::Direction direction, const Layout& layout,
             const tensorflow::Tensor& whole);
  void Add(const tensorflow::Tensor& shard);

  // Puts the copies on the stream that the device computes on.
  void Run(tensorflow::OpKernelContext* ctx) const;

 private:
  const Layout layout_;
  cuda::Moves moves_;
  std::vector<cuda::Piece> pieces_;
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_DEVICE_COPY_H_
