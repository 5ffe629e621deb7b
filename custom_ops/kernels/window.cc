#include "custom_ops/kernels/window.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "custom_ops/kernels/shape.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {

using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status Over(absl::string_view op, const windows::Padded& moves,
                  const TensorShape& images, int64_t channels,
                  absl::Span<const int64_t> window, int64_t count,
                  windows::Sizes* of, TensorShape* maps) {
  const int64_t height = images.dim_size(1), width = images.dim_size(2);
  TF_RETURN_IF_ERROR(CheckImage(op, {height, width}));
  TF_RETURN_IF_ERROR(CheckWindow(op, window));
  *of = moves.Over(height, width, channels, window[0], window[1]);
  return MakeShape(
      op, {images.dim_size(0), of->out_height, of->out_width, count}, maps);
}

absl::Status Window::Read(tensorflow::OpKernelConstruction* ctx,
                          const std::string& op) {
  op_ = op;
  TF_RETURN_IF_ERROR(ReadWindow(ctx, op, &window_));
  return ReadPadded(ctx, op, &moves_);
}

absl::Status Window::Over(const Tensor& images, windows::Sizes* of,
                          TensorShape* maps) const {
  if (images.dims() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(op_,
                     ": Expected images of shape [batch, height, width, "
                     "channels]. Received ",
                     images.shape().DebugString()));
  }
  const int64_t channels = images.dim_size(3);
  return tf_convpar::Over(op_, moves_, images.shape(), channels, window_,
                          channels, of, maps);
}

}  // namespace tf_convpar
