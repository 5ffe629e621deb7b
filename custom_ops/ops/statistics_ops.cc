// What the ops on statistics of channels look like from outside.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Every output is a vector, as long as the two rows of an input.
absl::Status AsRowsOf(InferenceContext* c, int input) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 2, &rows));
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Vector(c->Dim(rows, 1)));
  }
  return absl::OkStatus();
}

REGISTER_OP("TfConvpar>Affine")
    .Input("moments: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Output("scale: float")
    .Output("offset: float")
    .Attr("epsilon: float")
    .SetShapeFn([](InferenceContext* c) { return AsRowsOf(c, 0); })
    .Doc(R"doc(
By what a normalization scales each channel, and what it then adds. Gamma or beta
of no values is none.
)doc");

REGISTER_OP("TfConvpar>BatchNormalizationGradient")
    .Input("sums: float")
    .Input("moments: float")
    .Input("gamma: float")
    .Input("one_of_n: float")
    .Output("by_maps: float")
    .Output("by_all: float")
    .Output("by_gamma: float")
    .Attr("epsilon: float")
    .Attr("give_way: bool = false")
    .SetShapeFn([](InferenceContext* c) { return AsRowsOf(c, 1); })
    .Doc(R"doc(
What the gradient of a normalization by the moments of its own maps has besides
scaled gradients: for each channel what is times the maps, and a summand. And the
gradient by gamma. It is made of the sums of gradients, and of their products with
maps less their means. Gamma of no values is none. `give_way` lets other threads
of the core have their turn first: those that send what other devices wait for.
)doc");

REGISTER_OP("TfConvpar>MergedMoments")
    .Input("fractions: float")
    .Input("rows: N * float")
    .Output("moments: float")
    .Attr("N: int >= 1")
    .Attr("give_way: bool = false")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &rows));
      c->set_output(0, rows);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Means and variances of all maps, as two rows, of those of parts of them. The
fractions say how much of all each part is. `give_way` lets other threads of the
core have their turn before anything is computed with them.
)doc");

REGISTER_OP("TfConvpar>MovedMoments")
    .Input("moving_mean: float")
    .Input("moving_variance: float")
    .Input("moments: float")
    .Output("mean: float")
    .Output("variance: float")
    .Attr("keep: float")
    .Attr("new: float")
    .SetShapeFn([](InferenceContext* c) { return AsRowsOf(c, 2); })
    .Doc(R"doc(
Moving averages after a batch of these moments: what is kept of them, and what is
taken of the new ones.
)doc");

}  // namespace
}  // namespace tf_convpar
