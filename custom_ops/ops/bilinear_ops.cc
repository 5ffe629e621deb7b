// What the ops of a bilinear convolution look like from outside.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/ops/messages.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// [batch, image + padding - window + 1, filters].
absl::Status ForwardShape(InferenceContext* c) {
  const char* const op = "BilinearForward";
  Tiling tiling;
  bool adjoint;
  TF_RETURN_IF_ERROR(ReadTiling(c, op, &tiling));
  TF_RETURN_IF_ERROR(c->GetAttr("adjoint", &adjoint));
  const int axes = tiling.axes();
  ShapeHandle x, kernel;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), axes + 2, &x));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), axes + 2, &kernel));
  std::vector<DimensionHandle> dims = {c->Dim(x, 0)};
  for (int a = 0; a < axes; ++a) {
    const DimensionHandle pixels = c->Dim(x, a + 1), places = c->Dim(kernel, a);
    if (!c->ValueKnown(pixels) || !c->ValueKnown(places)) {
      dims.push_back(c->UnknownDim());
      continue;
    }
    const int64_t size = c->Value(pixels), window = c->Value(places);
    TF_RETURN_IF_ERROR(CheckImage(op, {size}));
    TF_RETURN_IF_ERROR(
        CheckIntegers(op, "a size of the window", {window}, 1, 1, kMostOfTile));
    const int64_t more = tiling.before[a] + tiling.after[a] - window + 1;
    const int64_t made = adjoint ? size - more : size + more;
    if (made < 0) {
      return BadImage(op, c->DebugString(kernel), c->DebugString(x));
    }
    dims.push_back(c->MakeDim(made));
  }
  dims.push_back(c->Dim(kernel, adjoint ? -2 : -1));
  c->set_output(0, c->MakeShape(dims));
  return absl::OkStatus();
}

// [window, channels, filters].
absl::Status KernelShape(InferenceContext* c) {
  const char* const op = "BilinearKernelGradient";
  Tiling tiling;
  std::vector<int64_t> window;
  TF_RETURN_IF_ERROR(ReadTiling(c, op, &tiling));
  TF_RETURN_IF_ERROR(c->GetAttr("window", &window));
  TF_RETURN_IF_ERROR(
      CheckIntegers(op, "window", window, tiling.axes(), 1, kMostOfTile));
  std::vector<DimensionHandle> dims;
  for (const int64_t size : window) dims.push_back(c->MakeDim(size));
  for (int i = 0; i < 2; ++i) {
    ShapeHandle maps;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), tiling.axes() + 2, &maps));
    dims.push_back(c->Dim(maps, -1));
  }
  c->set_output(0, c->MakeShape(dims));
  return absl::OkStatus();
}

REGISTER_OP("TfConvpar>BilinearForward")
    .Input("x: float")
    .Input("kernel: float")
    .Input("bias: float")
    .Output("y: float")
    .Attr("step: list(int) >= 1")
    .Attr("pad_before: list(int) >= 1")
    .Attr("pad_after: list(int) >= 1")
    .Attr("adjoint: bool = false")
    .Attr("remember: bool = false")
    .Attr("relu: bool = false")
    .Attr("image_structure: list(int)")
    .Attr("image_values: list(float)")
    .Attr("maps_structure: list(int)")
    .Attr("maps_values: list(float)")
    .Attr("kernel_structure: list(int)")
    .Attr("kernel_values: list(float)")
    .SetShapeFn(ForwardShape)
    .Doc(R"doc(
A [(G k) * (B x)], and the bias unless it is empty, from the programs of B, A
and G. With `adjoint` B' [(G k) * (A' x)] from those of A', B' and G: the
gradient for the image. `remember` keeps G k for the next call with an equal
kernel. With `relu` what is below 0 becomes 0, as an activation does.
)doc");

REGISTER_OP("TfConvpar>BilinearKernelGradient")
    .Input("x: float")
    .Input("dy: float")
    .Output("dk: float")
    .Attr("window: list(int) >= 1")
    .Attr("step: list(int) >= 1")
    .Attr("pad_before: list(int) >= 1")
    .Attr("pad_after: list(int) >= 1")
    .Attr("image_structure: list(int)")
    .Attr("image_values: list(float)")
    .Attr("maps_structure: list(int)")
    .Attr("maps_values: list(float)")
    .Attr("kernel_structure: list(int)")
    .Attr("kernel_values: list(float)")
    .SetShapeFn(KernelShape)
    .Doc("G' [(B x)' (A' dy)]; the programs are those of B, A' and G'.");

REGISTER_OP("TfConvpar>InstructionSet")
    .Output("name: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("What the bilinear ops run with on this device.");

REGISTER_OP("TfConvpar>WorkspaceBytes")
    .Output("bytes: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(3));
      return absl::OkStatus();
    })
    .Doc("Memory of the workspaces: in use, held in all, and the most held.");

}  // namespace
}  // namespace tf_convpar
