// Shapes of results. Those of hostile sizes are an error: TensorFlow's own
// constructors end the process.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_SHAPE_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_SHAPE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {

inline absl::Status MakeShape(absl::string_view op,
                              absl::Span<const int64_t> sizes,
                              tensorflow::TensorShape* shape) {
  if (tensorflow::TensorShape::BuildTensorShape(sizes, shape).ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": Expected a result of less than 2^63 numbers. ",
                   "Received sizes: ", absl::StrJoin(sizes, ", ")));
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_SHAPE_H_
