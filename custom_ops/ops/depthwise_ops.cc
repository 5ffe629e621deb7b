// What the ops on depthwise convolutions look like from outside.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfConvpar>Depthwise")
    .Input("images: float")
    .Input("kernel: float")
    .Input("bias: float")
    .Output("value: float")
    .Attr("stride: int")
    .Attr("padding: {'SAME', 'VALID'}")
    .Attr("zeros: list(int)")
    .Attr("activation: {'linear', 'relu', 'relu6', 'silu'} = 'linear'")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle images, kernel;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 3, &kernel));
      std::vector<int32_t> zeros;
      int32_t stride;
      std::string padding;
      TF_RETURN_IF_ERROR(c->GetAttr("zeros", &zeros));
      TF_RETURN_IF_ERROR(c->GetAttr("stride", &stride));
      TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
      if (zeros.size() != 4 || stride < 1) {
        return absl::InvalidArgumentError(
            "Depthwise: Expected four numbers of zeros and a stride");
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
                       c->Value(window), stride, padding == "SAME", &out,
                       &before);
        sizes.push_back(c->MakeDim(out));
      }
      c->set_output(0, c->MakeShape({c->Dim(images, 0), sizes[0], sizes[1],
                                     c->Dim(images, 3)}));
      return absl::OkStatus();
    })
    .Doc(R"doc(
A depthwise convolution of one kernel for each channel, channels last, with its
bias and an activation. `zeros` are above, below, left and right of the image,
beside those of `padding`.
)doc");

REGISTER_OP("TfConvpar>DepthwiseKernelGradient")
    .Input("images: float")
    .Input("gradients: float")
    .Output("value: float")
    .Attr("window: list(int)")
    .Attr("stride: int")
    .Attr("padding: {'SAME', 'VALID'}")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle images;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
      std::vector<int32_t> window;
      TF_RETURN_IF_ERROR(c->GetAttr("window", &window));
      if (window.size() != 2) {
        return absl::InvalidArgumentError(
            "DepthwiseKernelGradient: Expected a window of two sizes");
      }
      c->set_output(0,
                    c->MakeShape({c->MakeDim(window[0]), c->MakeDim(window[1]),
                                  c->Dim(images, 3)}));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The kernel gradient of a depthwise convolution, channels last, of the shape
[height, width, channels] of the window.
)doc");

}  // namespace
}  // namespace tf_convpar
