// The window of an op that moves it over images, or of one that makes a
// gradient of such an op.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_WINDOW_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_WINDOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {

// Sizes of one of the images [batch, height, width, ...], of so many channels,
// and of its feature maps; and the shape of `count` maps of all of them. Errors
// name `op`.
absl::Status Over(absl::string_view op, const windows::Padded& moves,
                  const tensorflow::TensorShape& images, int64_t channels,
                  absl::Span<const int64_t> window, int64_t count,
                  windows::Sizes* of, tensorflow::TensorShape* maps);

class Window {
 public:
  // Of the attributes `window`, `stride`, `padding` and, if the op has it,
  // `zeros`; errors name `op`.
  absl::Status Read(tensorflow::OpKernelConstruction* ctx,
                    const std::string& op);

  // Sizes of one of `images`, and the shape of all of their feature maps.
  absl::Status Over(const tensorflow::Tensor& images, windows::Sizes* of,
                    tensorflow::TensorShape* maps) const;

  const windows::Padded& moves() const { return moves_; }

 private:
  std::string op_;
  std::vector<int64_t> window_;
  windows::Padded moves_;
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_WINDOW_H_
