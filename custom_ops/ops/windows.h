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

// The first output: so many maps, of a window that moves over images, by the
// attributes `stride`, `padding` and, if the op has it, `zeros`.
inline absl::Status WindowShape(
    tensorflow::shape_inference::InferenceContext* c, const char* op,
    tensorflow::shape_inference::ShapeHandle images,
    const std::vector<tensorflow::shape_inference::DimensionHandle>& window,
    tensorflow::shape_inference::DimensionHandle maps) {
  using tensorflow::shape_inference::DimensionHandle;
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
    if (!c->ValueKnown(size) || !c->ValueKnown(window[axis])) {
      sizes.push_back(c->UnknownDim());
      continue;
    }
    int64_t out, before;
    windows::Along(c->Value(size) + zeros[2 * axis] + zeros[2 * axis + 1],
                   c->Value(window[axis]), stride, padding == "SAME", &out,
                   &before);
    sizes.push_back(c->MakeDim(out));
  }
  c->set_output(0, c->MakeShape({c->Dim(images, 0), sizes[0], sizes[1], maps}));
  return absl::OkStatus();
}

// The same with the window and the maps of a kernel, and images that are the
// first input, or some of them, where the kernel is another.
inline absl::Status MapsShape(tensorflow::shape_inference::InferenceContext* c,
                              const char* op, int kernel_rank,
                              int kernel_input = 1) {
  tensorflow::shape_inference::ShapeHandle images, kernel;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kernel_input), kernel_rank, &kernel));
  return WindowShape(c, op, images, {c->Dim(kernel, 0), c->Dim(kernel, 1)},
                     c->Dim(kernel, kernel_rank - 1));
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_OPS_WINDOWS_H_
