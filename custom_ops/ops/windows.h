// Shapes of what ops make by a window that moves over images.

#ifndef TF_CONVPAR_CUSTOM_OPS_OPS_WINDOWS_H_
#define TF_CONVPAR_CUSTOM_OPS_OPS_WINDOWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {

// The first output: as many maps as the last axis of the kernel, of the images
// that are the first input, or some of them, where the kernel is another, by
// the attributes `stride`, `padding` and, if the op has it, `zeros`.
inline absl::Status MapsShape(tensorflow::shape_inference::InferenceContext* c,
                              const char* op, int kernel_rank,
                              int kernel_input = 1) {
  using tensorflow::shape_inference::DimensionHandle;
  using tensorflow::shape_inference::ShapeHandle;
  ShapeHandle images, kernel;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kernel_input), kernel_rank, &kernel));
  std::vector<int32_t> zeros;
  int32_t stride;
  std::string padding;
  if (!c->GetAttr("zeros", &zeros).ok()) zeros.assign(4, 0);
  TF_RETURN_IF_ERROR(c->GetAttr("stride", &stride));
  TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
  if (zeros.size() != 4 || stride < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        op, ": Expected four numbers of zeros and a stride of at least 1"));
  }
  std::vector<DimensionHandle> sizes;
  for (int axis = 0; axis < 2; ++axis) {
    const DimensionHandle size = c->Dim(images, 1 + axis);
    const DimensionHandle window = c->Dim(kernel, axis);
    if (!c->ValueKnown(size) || !c->ValueKnown(window)) {
      sizes.push_back(c->UnknownDim());
      continue;
    }
    int64_t out, before;
    windows::Along(c->Value(size) + zeros[2 * axis] + zeros[2 * axis + 1],
                   c->Value(window), stride, padding == "SAME", &out, &before);
    sizes.push_back(c->MakeDim(out));
  }
  c->set_output(0, c->MakeShape({c->Dim(images, 0), sizes[0], sizes[1],
                                 c->Dim(kernel, kernel_rank - 1)}));
  return absl::OkStatus();
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_OPS_WINDOWS_H_
