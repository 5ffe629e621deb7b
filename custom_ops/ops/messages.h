// The sentences both the shape functions (graph mode) and the kernels (eager
// mode) answer a mismatch with. tf_convpar/ops/_checks.py says the same.

#ifndef TF_CONVPAR_CUSTOM_OPS_OPS_MESSAGES_H_
#define TF_CONVPAR_CUSTOM_OPS_OPS_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tf_convpar {

inline constexpr int kMinRank = 2;
inline constexpr int kMaxRank = 5;

inline absl::Status BadAxis(absl::string_view op, int64_t axis) {
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": Expected axis to be -1 (channels last) or 1 (channels first). ",
      "Received axis=", axis));
}

inline absl::Status BadRank(absl::string_view op, absl::string_view what,
                            absl::string_view shape) {
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": Expected tensors of rank ", kMinRank, " to ",
                   kMaxRank, ". Received ", what, " of shape ", shape));
}

// Shard `i` does not go with the earlier shard `j`.
inline absl::Status BadShard(int64_t axis, size_t j, absl::string_view shape_j,
                             size_t i, absl::string_view shape_i) {
  return absl::InvalidArgumentError(
      absl::StrCat("ConcatShards: Expected shards that differ in axis ", axis,
                   " only, as shard ", j, " of shape ", shape_j,
                   ". Received shard ", i, " of shape ", shape_i));
}

inline absl::Status BadSize(size_t i, int64_t size) {
  return absl::InvalidArgumentError(
      absl::StrCat("SplitShards: Expected sizes of zero or more. Received ",
                   "size ", size, " for shard ", i));
}

inline absl::Status BadCount(size_t sizes, size_t dtypes) {
  return absl::InvalidArgumentError(
      absl::StrCat("SplitShards: Expected one dtype per size. Received ", sizes,
                   " sizes and ", dtypes, " dtypes"));
}

// `shard_shape` is that of shard `i`, which ends in the wrong place.
inline absl::Status BadSum(int64_t axis, int64_t width,
                           absl::string_view value_shape,
                           const std::vector<int64_t>& sizes, size_t i,
                           uint64_t end, absl::string_view shard_shape) {
  return absl::InvalidArgumentError(
      absl::StrCat("SplitShards: Expected sizes that sum to ", width, ", axis ",
                   axis, " of the value of shape ", value_shape,
                   ". Received sizes [", absl::StrJoin(sizes, ","), "]: shard ",
                   i, " of shape ", shard_shape, " ends at ", end));
}

// Finds the shard to blame where `sizes` do not sum to `width`: the first that
// ends past it, or else the last. Returns false where they do sum. No size is
// negative.
inline bool FindBadEnd(const std::vector<int64_t>& sizes, int64_t width,
                       size_t* i, uint64_t* end) {
  const uint64_t all = width;
  *end = 0;
  for (*i = 0; *i < sizes.size(); ++*i) {
    *end += sizes[*i];
    if (*end > all) return true;
  }
  --*i;
  return *end != all;
}

// Of a bilinear convolution.
inline absl::Status BadImage(absl::string_view op, absl::string_view kernel,
                             absl::string_view image) {
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": Expected padded images no smaller than the kernel, ",
                   kernel, ". Received shape: ", image));
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_OPS_MESSAGES_H_
