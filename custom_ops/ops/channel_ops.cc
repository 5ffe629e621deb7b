// What the ops on channels look like from outside.

#include "absl/status/status.h"
#include "custom_ops/ops/activations.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr char kActivation[] = TF_CONVPAR_ACTIVATION("activation");

// [2, channels].
absl::Status TwoVectors(InferenceContext* c) {
  ShapeHandle maps;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &maps));
  const auto channels = c->RankKnown(maps) ? c->Dim(maps, -1) : c->UnknownDim();
  c->set_output(0, c->Matrix(c->MakeDim(2), channels));
  return absl::OkStatus();
}

REGISTER_OP("TfConvpar>ChannelMoments")
    .Input("maps: float")
    .Output("moments: float")
    .SetShapeFn(TwoVectors)
    .Doc(R"doc(
For each channel, which is the last axis, the mean and the variance.
)doc");

REGISTER_OP("TfConvpar>ChannelSums")
    .Input("gradients: float")
    .Input("maps: float")
    .Input("means: float")
    .Output("sums: float")
    .SetShapeFn(TwoVectors)
    .Doc(R"doc(
For each channel, which is the last axis, the sum of the gradients, and that of
their products with the maps less the means.
)doc");

REGISTER_OP("TfConvpar>ScaleChannels")
    .Input("maps: N * float")
    .Input("scales: N * float")
    .Input("offset: float")
    .Output("value: float")
    .Attr("N: int >= 1")
    .Attr(kActivation)
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
The sum of maps, each channel times its scale, and of its offset; and an
activation of that.
)doc");

REGISTER_OP("TfConvpar>ActivatedSums")
    .Input("gradients: float")
    .Input("maps: float")
    .Input("means: float")
    .Input("scale: float")
    .Input("offset: float")
    .Output("sums: float")
    .Attr(kActivation)
    .SetShapeFn(TwoVectors)
    .Doc(R"doc(
As ChannelSums, of the gradients times the activation's derivative at the maps,
each channel times its scale, and its offset.
)doc");

REGISTER_OP("TfConvpar>ActivatedGradient")
    .Input("gradients: float")
    .Input("maps: float")
    .Input("scale: float")
    .Input("offset: float")
    .Input("by_maps: float")
    .Input("by_all: float")
    .Output("value: float")
    .Attr(kActivation)
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
The gradients times the activation's derivative, each channel times its scale;
and the maps times `by_maps`, and `by_all`.
)doc");

REGISTER_OP("TfConvpar>BiasedGradient")
    .Input("gradients: float")
    .Input("maps: float")
    .Input("bias: float")
    .Output("by_maps: float")
    .Output("by_bias: float")
    .Attr(kActivation)
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->input(0));
      c->set_output(1, c->input(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradients times the activation's derivative at the maps plus the bias; and
for each channel the sum of that.
)doc");

}  // namespace
}  // namespace tf_convpar
