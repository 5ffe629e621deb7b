// What the op on pooling looks like from outside.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/ops/windows.h"
#include "custom_ops/windows/sizes.h"
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
      std::vector<int64_t> window;
      windows::Padded moves;
      TF_RETURN_IF_ERROR(ReadWindow(c, "MaxPoolGradient", &window));
      TF_RETURN_IF_ERROR(ReadPadded(c, "MaxPoolGradient", &moves));
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient by images of their pooled maxima, channels last.
)doc");

REGISTER_OP("TfConvpar>Pool")
    .Input("images: float")
    .Output("value: float")
    .Attr("window: list(int)")
    .Attr("stride: int")
    .Attr("padding: {'SAME', 'VALID'}")
    .Attr("zeros: list(int) = [0, 0, 0, 0]")
    .Attr("kind: {'max', 'average'}")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      tensorflow::shape_inference::ShapeHandle images;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
      std::vector<int64_t> window;
      TF_RETURN_IF_ERROR(ReadWindow(c, "Pool", &window));
      return WindowShape(c, "Pool", images,
                         {c->MakeDim(window[0]), c->MakeDim(window[1])},
                         c->Dim(images, 3));
    })
    .Doc(R"doc(
The largest or the mean of each window, channels last. `zeros` are around the
images beside those of the padding, which do not count.
)doc");

}  // namespace
}  // namespace tf_convpar
