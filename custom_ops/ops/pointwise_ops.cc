// What the op of pointwise convolutions looks like from outside.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfConvpar>Pointwise")
    .Input("images: float")
    .Input("kernel: float")
    .Input("scale: float")
    .Input("offset: float")
    .Output("value: float")
    .Attr("activation: {'linear', 'relu', 'relu6', 'silu'} = 'linear'")
    .Attr("remember: bool = false")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle images, kernel, shape;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &images));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &kernel));
      TF_RETURN_IF_ERROR(c->ReplaceDim(images, -1, c->Dim(kernel, 1), &shape));
      c->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"doc(
The product of images, [.., channels], and a kernel, [channels, filters], each
filter times a factor and plus a summand, where there are any, and an activation
of that. With `remember` the kernel is arranged once for as long as it stays the
same.
)doc");

}  // namespace
}  // namespace tf_convpar
