// What the op on pooling looks like from outside.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfConvpar>MaxPoolGradient")
    .Input("images: float")
    .Input("maxima: float")
    .Input("gradients: float")
    .Output("value: float")
    .Attr("window: list(int)")
    .Attr("stride: int")
    .Attr("padding: {'SAME', 'VALID'}")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient by images of their pooled maxima, channels last.
)doc");

}  // namespace
}  // namespace tf_convpar
