// What the op on functions of the runtime looks like from outside.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfConvpar>ReleaseFunctions")
    .Input("names: string")
    .Input("own: string")
    .Output("released: int32")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle own;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &own));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Releases what is left on this device of functions that are gone.

names: Names of functions that nobody can call any more.
own: Name of the function that this op is called from, which nobody called
  before. The runtime numbers what it has instantiated; this is the last one.
released: How many parts of them there were.
)doc");

}  // namespace
}  // namespace tf_convpar
