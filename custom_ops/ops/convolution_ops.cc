// What the op of convolutions for inference looks like from outside.

#include "absl/status/status.h"
#include "custom_ops/ops/windows.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfConvpar>Convolution")
    .Input("images: float")
    .Input("kernel: float")
    .Input("scale: float")
    .Input("offset: float")
    .Input("summand: float")
    .Output("value: float")
    .Attr("stride: int = 1")
    .Attr("padding: {'SAME', 'VALID'} = 'VALID'")
    .Attr("activation: {'linear', 'relu', 'relu6', 'silu'} = 'linear'")
    .Attr("remember: bool = false")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      return MapsShape(c, "Convolution", 4);
    })
    .Doc(R"doc(
A convolution, channels last, each filter times a factor and plus an offset, plus
a summand of the shape of the feature maps, and an activation of that. Of factors,
offsets and summand those of one axis and no values are none. With `remember` the kernel is
arranged once for as long as it stays the same.
)doc");

}  // namespace
}  // namespace tf_convpar
