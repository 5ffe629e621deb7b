// The window of an op that moves it over images, or of one that makes a
// gradient of such an op.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_WINDOW_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_WINDOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {

class Window {
 public:
  // Of the attributes `window`, `stride` and `padding`; errors name `op`.
  absl::Status Read(tensorflow::OpKernelConstruction* ctx,
                    const std::string& op);

  // Sizes of one of `images`, and the shape of all of their feature maps.
  absl::Status Over(const tensorflow::Tensor& images, windows::Sizes* of,
                    tensorflow::TensorShape* maps) const;

 private:
  std::string op_;
  std::vector<int32_t> window_;
  int32_t stride_;
  bool same_;
};

// How a window moves, by the attributes `stride`, `padding` and, if the op has
// it, `zeros`; errors name `op`.
absl::Status ReadPadded(tensorflow::OpKernelConstruction* ctx,
                        const std::string& op, windows::Padded* found);

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_WINDOW_H_
