// What the op of convolutions for inference looks like from outside.

#include <cstdint>

#include "absl/status/status.h"
#include "custom_ops/ops/activations.h"
#include "custom_ops/ops/windows.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfConvpar>Convolution")
    .Input("images: parts * float")
    .Input("kernel: float")
    .Input("scale: float")
    .Input("offset: float")
    .Input("summand: float")
    .Input("image_scale: float")
    .Input("image_offset: float")
    .Output("value: float")
    .Attr("parts: int >= 1")
    .Attr("stride: int = 1")
    .Attr("padding: {'SAME', 'VALID'} = 'VALID'")
    .Attr("zeros: list(int) = [0, 0, 0, 0]")
    .Attr(TF_CONVPAR_ACTIVATION("activation"))
    .Attr(TF_CONVPAR_ACTIVATION("image_activation"))
    .Attr("image_epsilon: float = -1.0")
    .Attr("remember: bool = false")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int32_t parts;
      TF_RETURN_IF_ERROR(c->GetAttr("parts", &parts));
      return MapsShape(c, "Convolution", 4, parts);
    })
    .Doc(R"doc(
A convolution, channels last, each filter times a factor and plus an offset, plus
a summand of the shape of the feature maps, and an activation of that. `zeros` are
above, below, left and right of the image, beside those of the padding. Of factors,
offsets and summand those of one axis and no values are none. With `remember` the kernel is
arranged once for as long as it stays the same.

Images may come in parts, which are joined along their channels. They may have a
factor for each channel, or for each image and channel, an offset for each
channel, and an activation of that, before they are multiplied. With an
`image_epsilon` of 0 or more each pixel is normalized before that: its channels
less their mean, by the root of their variance and epsilon. Several parts, and
what is done to them, are for windows of one pixel and strides of 1.
)doc");

}  // namespace
}  // namespace tf_convpar
