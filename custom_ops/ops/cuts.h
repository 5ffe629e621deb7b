// How tensors are cut between holders, by the attributes of the ops on pieces.

#ifndef TF_CONVPAR_CUSTOM_OPS_OPS_CUTS_H_
#define TF_CONVPAR_CUSTOM_OPS_OPS_CUTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "custom_ops/ops/bounds.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {

// Each of several tensors is cut along an axis, and each holder has one part of
// it, which may be empty. A holder's parts are one after the other in a row of
// numbers, which is cut into `count` pieces of about one size.
struct Cuts {
  std::vector<tensorflow::TensorShape> shapes;
  std::vector<int64_t> rows;    // of a tensor: the product of sizes before axis
  std::vector<int64_t> inner;   // the product of sizes after it
  std::vector<int64_t> widths;  // along the axis: of each tensor those of all
  std::vector<int64_t> totals;  // numbers of each holder
  int64_t count = 1;

  size_t holders() const { return totals.size(); }

  int64_t width(size_t tensor, size_t holder) const {
    return widths[tensor * holders() + holder];
  }

  // Where a piece of a holder begins in its row.
  int64_t Begin(size_t holder, int64_t piece) const {
    const int64_t total = totals[holder];
    return total / count * piece + total % count * piece / count;
  }
};

// By the attributes `shapes`, `axes`, `widths` and `count`.
template <typename Context>
absl::Status ReadCuts(Context* ctx, absl::string_view op, Cuts* found) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  std::vector<int64_t> axes;
  absl::Status status = ctx->GetAttr("shapes", &shapes);
  if (status.ok()) status = ctx->GetAttr("axes", &axes);
  if (status.ok()) status = ctx->GetAttr("widths", &found->widths);
  if (status.ok()) status = ctx->GetAttr("count", &found->count);
  if (!status.ok()) return status;
  const size_t tensors = shapes.size();
  if (tensors == 0 || found->widths.empty() ||
      found->widths.size() % tensors != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        op, ": Expected a width of each holder for each tensor. Received: ",
        tensors, " tensors and ", found->widths.size(), " widths"));
  }
  const size_t holders = found->widths.size() / tensors;
  status = CheckIntegers(op, "the axes", axes, tensors, 0, kMostAlong);
  if (status.ok()) {
    status = CheckIntegers(op, "the widths", found->widths,
                           found->widths.size(), 0, kMostPixels);
  }
  if (status.ok()) {
    status = CheckIntegers(op, "the count", {found->count}, 1, 1, kMostAlong);
  }
  if (!status.ok()) return status;
  found->totals.assign(holders, 0);
  for (size_t k = 0; k < tensors; ++k) {
    tensorflow::TensorShape shape;
    const bool known = shapes[k].AsTensorShape(&shape);
    // A scalar is cut as a row of one number.
    const int axis = static_cast<int>(axes[k]);
    if (!known || axis >= std::max(shape.dims(), 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          op, ": Expected shapes that are known, and have the axis. Received: ",
          shapes[k].DebugString(), " and axis ", axes[k]));
    }
    int64_t rows = 1, size = 1, inner = 1, sum = 0;
    const bool copies = shape.num_elements() > 0;
    for (int d = 0; d < shape.dims(); ++d) {
      if (d == axis) size = shape.dim_size(d);
      // Sizes besides one of zero may be of any product.
      else
        (d < axis ? rows : inner) *= copies ? shape.dim_size(d) : 0;
    }
    for (size_t h = 0; h < holders; ++h) sum += found->widths[k * holders + h];
    if (sum != size || shape.num_elements() > kMostPixels) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": Expected widths that sum to the size of axis ",
                       axis, ", and at most 2^40 numbers. Received: a sum of ",
                       sum, " for ", shape.DebugString()));
    }
    for (size_t h = 0; h < holders; ++h) {
      found->totals[h] += rows * found->widths[k * holders + h] * inner;
    }
    found->shapes.push_back(shape);
    found->rows.push_back(rows);
    found->inner.push_back(inner);
  }
  return absl::OkStatus();
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_OPS_CUTS_H_
