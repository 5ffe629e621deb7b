// Shapes of what ops make by a window that moves over images.

#ifndef TF_CONVPAR_CUSTOM_OPS_OPS_WINDOWS_H_
#define TF_CONVPAR_CUSTOM_OPS_OPS_WINDOWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/ops/bounds.h"
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
  windows::Padded moves;
  TF_RETURN_IF_ERROR(ReadPadded(c, op, &moves));
  // What is unknown counts as 1.
  int64_t image[2], size[2];
  for (int axis = 0; axis < 2; ++axis) {
    const DimensionHandle pixels = c->Dim(images, 1 + axis);
    image[axis] = c->ValueKnown(pixels) ? c->Value(pixels) : 1;
    const bool known = c->ValueKnown(window[axis]);
    size[axis] = known ? c->Value(window[axis]) : 1;
  }
  TF_RETURN_IF_ERROR(CheckImage(op, image));
  TF_RETURN_IF_ERROR(CheckWindow(op, size));
  const windows::Sizes of = moves.Over(image[0], image[1], 1, size[0], size[1]);
  const int64_t out[] = {of.out_height, of.out_width};
  std::vector<DimensionHandle> sizes;
  for (int axis = 0; axis < 2; ++axis) {
    const bool known =
        c->ValueKnown(c->Dim(images, 1 + axis)) && c->ValueKnown(window[axis]);
    sizes.push_back(known ? c->MakeDim(out[axis]) : c->UnknownDim());
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
