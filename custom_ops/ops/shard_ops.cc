// What the two ops look like from outside, and the shapes they infer.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "custom_ops/ops/messages.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_convpar {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status GetAxis(InferenceContext* c, absl::string_view op, int64_t* axis) {
  TF_RETURN_IF_ERROR(c->GetAttr("axis", axis));
  if (*axis != -1 && *axis != 1) return BadAxis(op, *axis);
  return absl::OkStatus();
}

bool RankAllowed(InferenceContext* c, ShapeHandle shape) {
  return !c->RankKnown(shape) ||
         (c->Rank(shape) >= kMinRank && c->Rank(shape) <= kMaxRank);
}

// Whether two shapes may be of shards of one tensor; unknown goes with all.
bool Compatible(InferenceContext* c, ShapeHandle a, ShapeHandle b,
                int64_t axis) {
  if (!c->RankKnown(a) || !c->RankKnown(b)) return true;
  if (c->Rank(a) != c->Rank(b)) return false;
  const int32_t rank = c->Rank(a);
  const int32_t skip = axis < 0 ? rank - 1 : axis;
  for (int32_t d = 0; d < rank; ++d) {
    const int64_t m = c->Value(c->Dim(a, d)), n = c->Value(c->Dim(b, d));
    if (d != skip && m >= 0 && n >= 0 && m != n) return false;
  }
  return true;
}

absl::Status ConcatShape(InferenceContext* c) {
  int64_t axis;
  TF_RETURN_IF_ERROR(GetAxis(c, "ConcatShards", &axis));
  // What all shards say together, with the axis left open.
  ShapeHandle merged = c->UnknownShape();
  DimensionHandle width = c->MakeDim(0);
  for (int i = 0; i < c->num_inputs(); ++i) {
    ShapeHandle shard = c->input(i);
    if (!RankAllowed(c, shard)) {
      return BadRank("ConcatShards", absl::StrCat("shard ", i),
                     c->DebugString(shard));
    }
    for (int j = 0; j < i; ++j) {
      if (!Compatible(c, c->input(j), shard, axis)) {
        return BadShard(axis, j, c->DebugString(c->input(j)), i,
                        c->DebugString(shard));
      }
    }
    if (!c->RankKnown(shard)) {
      width = c->UnknownDim();
      continue;
    }
    TF_RETURN_IF_ERROR(c->Add(width, c->Dim(shard, axis), &width));
    TF_RETURN_IF_ERROR(c->ReplaceDim(shard, axis, c->UnknownDim(), &shard));
    TF_RETURN_IF_ERROR(c->Merge(merged, shard, &merged));
  }
  if (c->RankKnown(merged)) {
    TF_RETURN_IF_ERROR(c->ReplaceDim(merged, axis, width, &merged));
  }
  c->set_output(0, merged);
  return absl::OkStatus();
}

absl::Status SplitShape(InferenceContext* c) {
  int64_t axis;
  TF_RETURN_IF_ERROR(GetAxis(c, "SplitShards", &axis));
  std::vector<int64_t> sizes;
  TF_RETURN_IF_ERROR(c->GetAttr("sizes", &sizes));
  if (static_cast<int>(sizes.size()) != c->num_outputs()) {
    return BadCount(sizes.size(), c->num_outputs());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return BadSize(i, sizes[i]);
  }
  const ShapeHandle value = c->input(0);
  if (!RankAllowed(c, value)) {
    return BadRank("SplitShards", "value", c->DebugString(value));
  }
  if (!c->RankKnown(value)) return tensorflow::shape_inference::UnknownShape(c);
  const int64_t width = c->Value(c->Dim(value, axis));
  for (size_t i = 0; i < sizes.size(); ++i) {
    ShapeHandle shard;
    TF_RETURN_IF_ERROR(
        c->ReplaceDim(value, axis, c->MakeDim(sizes[i]), &shard));
    c->set_output(i, shard);
  }
  size_t i;
  uint64_t end;
  if (width >= 0 && FindBadEnd(sizes, width, &i, &end)) {
    return BadSum(axis, width, c->DebugString(value), sizes, i, end,
                  c->DebugString(c->output(static_cast<int>(i))));
  }
  return absl::OkStatus();
}

REGISTER_OP("TfConvpar>ConcatShards")
    .Input("shards: T")
    .Output("value: U")
    .Attr("T: list({half, bfloat16, float, double}) >= 1")
    .Attr("U: {half, bfloat16, float, double}")
    .Attr("axis: int = -1")
    .SetShapeFn(ConcatShape)
    .Doc(R"doc(
Joins shards of unequal width along the channel axis, converting as it copies.
)doc");

REGISTER_OP("TfConvpar>SplitShards")
    .Input("value: T")
    .Output("shards: U")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("U: list({half, bfloat16, float, double}) >= 1")
    .Attr("sizes: list(int) >= 1")
    .Attr("axis: int = -1")
    .SetShapeFn(SplitShape)
    .Doc(R"doc(
Cuts a tensor into contiguous shards along the channel axis, converting as it
copies.
)doc");

}  // namespace
}  // namespace tf_convpar
