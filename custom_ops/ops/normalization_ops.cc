// What the ops that normalize pixels and groups look like from outside.

#include <cstdint>

#include "absl/status/status.h"
#include "custom_ops/ops/activations.h"
#include "custom_ops/ops/bounds.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr char kActivation[] = TF_CONVPAR_ACTIVATION("activation");

// Of the first input's shape; and [2, channels].
absl::Status MapsAndTwoVectors(InferenceContext* c) {
  ShapeHandle maps;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &maps));
  const auto channels = c->RankKnown(maps) ? c->Dim(maps, -1) : c->UnknownDim();
  c->set_output(0, maps);
  c->set_output(1, c->Matrix(c->MakeDim(2), channels));
  return absl::OkStatus();
}

REGISTER_OP("TfConvpar>LayerNormalization")
    .Input("maps: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Output("value: float")
    .Attr("epsilon: float")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
The channels of each pixel less their mean, by the root of their variance and
epsilon; each times its gamma, and plus its beta. Gamma or beta of no values is
none.
)doc");

REGISTER_OP("TfConvpar>LayerNormalizationGradient")
    .Input("gradients: float")
    .Input("maps: float")
    .Input("gamma: float")
    .Output("by_maps: float")
    .Output("sums: float")
    .Attr("epsilon: float")
    .SetShapeFn(MapsAndTwoVectors)
    .Doc(R"doc(
The gradient of a layer normalization by its maps; and for each channel the sums
of the gradients and of their products with normalized maps.
)doc");

REGISTER_OP("TfConvpar>GroupNormalization")
    .Input("maps: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Output("value: float")
    .Output("mean: float")
    .Output("variance: float")
    .Attr("groups: int")
    .Attr("epsilon: float")
    .Attr(kActivation)
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle maps;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &maps));
      int64_t groups;
      TF_RETURN_IF_ERROR(ReadGroups(c, "GroupNormalization", &groups));
      auto images = c->UnknownDim();
      if (c->RankKnown(maps)) {
        images = c->Rank(maps) > 1 ? c->Dim(maps, 0) : c->MakeDim(1);
      }
      c->set_output(0, maps);
      c->set_output(1, c->Matrix(images, groups));
      c->set_output(2, c->Matrix(images, groups));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Groups of channels of each image, normalized by their mean and variance; each
channel times its gamma, plus its beta; and an activation of that. Gamma or beta
of no values is none.
)doc");

REGISTER_OP("TfConvpar>GroupNormalizationGradient")
    .Input("gradients: float")
    .Input("maps: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("variance: float")
    .Output("by_maps: float")
    .Output("sums: float")
    .Attr("groups: int")
    .Attr("epsilon: float")
    .Attr(kActivation)
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      int64_t groups;
      TF_RETURN_IF_ERROR(ReadGroups(c, "GroupNormalization", &groups));
      return MapsAndTwoVectors(c);
    })
    .Doc(R"doc(
The gradient of a group normalization by its maps; and for each channel the sums
of gradients that have passed back through the activation, and of their products
with normalized maps.
)doc");

}  // namespace
}  // namespace tf_convpar
