// What the ops on packs of tensors look like from outside.

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status Scalar(InferenceContext* c) {
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("TfConvpar>Pack")
    .Input("values: types")
    .Output("packed: variant")
    .Attr("types: list(type) >= 1")
    .SetShapeFn(Scalar)
    .Doc("Tensors as one scalar, which shares their memory.");

REGISTER_OP("TfConvpar>Unpack")
    .Input("packed: variant")
    .Output("values: types")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape)")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      std::vector<tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      for (int i = 0; i < c->num_outputs(); ++i) {
        ShapeHandle shape = c->UnknownShape();
        if (i < static_cast<int>(shapes.size())) {
          TF_RETURN_IF_ERROR(
              c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        }
        c->set_output(i, shape);
      }
      return absl::OkStatus();
    })
    .Doc("The tensors of a pack, of these types and shapes.");

REGISTER_OP("TfConvpar>Unchanged")
    .Input("variables: resource")
    .Input("packed: variant")
    .Output("unchanged: bool")
    .SetIsStateful()
    .SetShapeFn(Scalar)
    .Doc(R"doc(
Whether variables, a vector, have the values of a pack. What was read of them is
compared by where it is in memory: nobody writes there as long as the pack has it.
)doc");

}  // namespace
}  // namespace tf_convpar
