#include "custom_ops/kernels/window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tf_convpar {

using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status Window::Read(tensorflow::OpKernelConstruction* ctx,
                          const std::string& op) {
  op_ = op;
  std::string padding;
  TF_RETURN_IF_ERROR(ctx->GetAttr("window", &window_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("stride", &stride_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("padding", &padding));
  same_ = padding == "SAME";
  if (window_.size() == 2 && std::min(window_[0], window_[1]) > 0 &&
      stride_ > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      op_, ": Expected a window of two sizes and a stride, each at least 1"));
}

absl::Status Window::Over(const Tensor& images, windows::Sizes* of,
                          TensorShape* maps) const {
  if (images.dims() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(op_,
                     ": Expected images of shape [batch, height, width, "
                     "channels]. Received ",
                     images.shape().DebugString()));
  }
  of->height = images.dim_size(1), of->width = images.dim_size(2);
  of->channels = images.dim_size(3);
  of->window_height = window_[0], of->window_width = window_[1];
  of->stride = stride_;
  windows::Along(of->height, of->window_height, stride_, same_, &of->out_height,
                 &of->top);
  windows::Along(of->width, of->window_width, stride_, same_, &of->out_width,
                 &of->left);
  *maps = TensorShape(
      {images.dim_size(0), of->out_height, of->out_width, of->channels});
  return absl::OkStatus();
}

absl::Status ReadPadded(tensorflow::OpKernelConstruction* ctx,
                        const std::string& op, windows::Padded* found) {
  std::string padding;
  std::vector<int32_t> zeros;
  int32_t stride;
  TF_RETURN_IF_ERROR(ctx->GetAttr("stride", &stride));
  TF_RETURN_IF_ERROR(ctx->GetAttr("padding", &padding));
  if (ctx->HasAttr("zeros")) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("zeros", &zeros));
  } else {
    zeros.assign(4, 0);
  }
  if (stride < 1 || zeros.size() != 4 ||
      *std::min_element(zeros.begin(), zeros.end()) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        op, ": Expected a stride of at least 1, and four numbers of zeros"));
  }
  *found = {stride, padding == "SAME", zeros[0], zeros[1], zeros[2], zeros[3]};
  return absl::OkStatus();
}

}  // namespace tf_convpar
