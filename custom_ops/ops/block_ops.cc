// What the ops on vectors in few bits look like from outside.

#include <cstdint>

#include "absl/status/status.h"
#include "custom_ops/blocks/kernels.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfConvpar>EncodeBlocks")
    .Input("values: float")
    .Input("less: float")
    .Input("left: float")
    .Output("message: uint8")
    .Output("rest: float")
    .Attr("bits: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle values, less, left;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &less));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &left));
      int bits = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("bits", &bits));
      DimensionHandle bytes = c->UnknownDim();
      if (c->ValueKnown(c->Dim(values, 0))) {
        const int64_t count = c->Value(c->Dim(values, 0));
        bytes = c->MakeDim(blocks::MessageBytes(bits, count));
      }
      c->set_output(0, c->Vector(bytes));
      c->set_output(1, left);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Values as whole numbers of few bits, a scale for each block of 256 of them. `less`
is taken from them first, unless it has no values. `left` is added then, and `rest`
is what rounding leaves; of no values, it is none. Zeros fill up the last block. The
message is all numbers, then all scales.
)doc");

REGISTER_OP("TfConvpar>DecodeBlocks")
    .Input("message: uint8")
    .Input("added: float")
    .Output("values: float")
    .Attr("bits: int >= 1")
    .Attr("size: int >= 0")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle message, added;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &message));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &added));
      int64_t size = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("size", &size));
      c->set_output(0, c->Vector(size));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The first values of a message of `EncodeBlocks`, added to others unless these are none.
)doc");

}  // namespace
}  // namespace tf_convpar
