// What the ops on pieces of tensors look like from outside.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/ops/cuts.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status CheckNumber(const Cuts& cuts, int64_t pieces,
                         const std::string& op) {
  const int64_t wanted = static_cast<int64_t>(cuts.holders()) * cuts.count;
  if (pieces == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": Expected ", cuts.count, " pieces of each of ",
                   cuts.holders(), " holders. Received: ", pieces));
}

REGISTER_OP("TfConvpar>ToPieces")
    .Input("tensors: K * T")
    .Output("pieces: N * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("K: int >= 1")
    .Attr("N: int >= 1")
    .Attr("shapes: list(shape)")
    .Attr("axes: list(int)")
    .Attr("widths: list(int)")
    .Attr("count: int")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      Cuts cuts;
      TF_RETURN_IF_ERROR(ReadCuts(c, "ToPieces", &cuts));
      TF_RETURN_IF_ERROR(CheckNumber(cuts, c->num_outputs(), "ToPieces"));
      int output = 0;
      for (size_t h = 0; h < cuts.holders(); ++h) {
        for (int64_t i = 0; i < cuts.count; ++i) {
          c->set_output(output++,
                        c->Vector(cuts.Begin(h, i + 1) - cuts.Begin(h, i)));
        }
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Cuts tensors, each along an axis, and puts what is one holder's in a row, in so
many pieces. `widths` are those of each holder of the first tensor, then of the
second. The pieces of the first holder come first.
)doc");

REGISTER_OP("TfConvpar>FromPieces")
    .Input("pieces: N * T")
    .Output("tensors: K * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("K: int >= 1")
    .Attr("N: int >= 1")
    .Attr("shapes: list(shape)")
    .Attr("axes: list(int)")
    .Attr("widths: list(int)")
    .Attr("count: int")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      Cuts cuts;
      TF_RETURN_IF_ERROR(ReadCuts(c, "FromPieces", &cuts));
      TF_RETURN_IF_ERROR(CheckNumber(cuts, c->num_inputs(), "FromPieces"));
      if (static_cast<size_t>(c->num_outputs()) != cuts.shapes.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "FromPieces: Expected a shape for each of ", c->num_outputs(),
            " tensors. Received: ", cuts.shapes.size()));
      }
      for (int k = 0; k < c->num_outputs(); ++k) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromTensorShape(cuts.shapes[k], &shape));
        c->set_output(k, shape);
      }
      return absl::OkStatus();
    })
    .Doc("The tensors of the pieces that `ToPieces` makes of them.");

}  // namespace
}  // namespace tf_convpar
