// What the ops by which devices exchange rows look like from outside.

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfConvpar>PeersListen")
    .Input("host: string")
    .Output("address: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Lets other processes of a cluster connect to this one, to exchange rows with it.

host: The address of this machine by which they reach it.
address: The number by which they know this process, and its port. The same at
  each call. Zeros if this machine has no such address.
)doc");

REGISTER_OP("TfConvpar>PeersConnect")
    .Input("address: int64")
    .Input("host: string")
    .Output("connected: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Connects this process to another one, unless it is. What it gives says whether
there is a connection then.

address: What `PeersListen` has said there.
host: Where that process runs.
)doc");

// Both are stateful, so that all devices run them, whoever needs the result,
// and none is run on constants as a step is prepared, where nobody answers.

REGISTER_OP("TfConvpar>ExchangeRows")
    .Input("row: T")
    .Output("rows: N * T")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .Attr("peers: list(int)")
    .Attr("number: int")
    .Attr("shapes: list(shape) = []")
    .Attr("weights: bool = false")
    // A lost connection is then an error of a lost task, as gRPC's are.
    .SetIsDistributedCommunication()
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      std::vector<tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      for (int i = 0; i < c->num_outputs(); ++i) {
        tensorflow::shape_inference::ShapeHandle shape = c->input(0);
        if (!shapes.empty()) {
          TF_RETURN_IF_ERROR(
              c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        }
        c->set_output(i, shape);
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
The rows of all devices, each of which runs this op with its own. The ops are in
one scope, which no other op of the step is in.

peers: The processes of the devices, by the numbers of `PeersListen`.
number: Which of them this device is.
shapes: The shape of the row of each device; none if all are alike. A row of no
  numbers is not sent.
weights: Whether they are weights, which statistics pass by.
)doc");

REGISTER_OP("TfConvpar>SumRows")
    .Input("rows: N * T")
    .Output("row: T")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .Attr("peers: list(int)")
    .Attr("number: int")
    .Attr("weights: bool = false")
    // A lost connection is then an error of a lost task, as gRPC's are.
    .SetIsDistributedCommunication()
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int number = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("number", &number));
      const bool known = 0 <= number && number < c->num_inputs();
      c->set_output(0, known ? c->input(number) : c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The sum of the rows that all devices have for this one, as gradients of
`ExchangeRows`.

rows: A row for each device.
peers: The processes of the devices, by the numbers of `PeersListen`.
number: Which of them this device is.
weights: Whether they are gradients of weights, which statistics pass by.
)doc");

}  // namespace
}  // namespace tf_convpar
