// What the ops on depthwise convolutions look like from outside.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/ops/activations.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/ops/windows.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

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
    .Attr(TF_CONVPAR_ACTIVATION("activation"))
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      return MapsShape(c, "Depthwise", 3);
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
      std::vector<int64_t> window;
      windows::Padded moves;
      TF_RETURN_IF_ERROR(ReadWindow(c, "DepthwiseKernelGradient", &window));
      TF_RETURN_IF_ERROR(ReadPadded(c, "DepthwiseKernelGradient", &moves));
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
