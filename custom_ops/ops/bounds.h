// Bounds of attributes and sizes. Shape functions (graph mode) and kernels
// (eager mode) read attributes by the same functions: none of them reaches
// arithmetic that it would overflow.

#ifndef TF_CONVPAR_CUSTOM_OPS_OPS_BOUNDS_H_
#define TF_CONVPAR_CUSTOM_OPS_OPS_BOUNDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "custom_ops/windows/sizes.h"

namespace tf_convpar {

// Along an axis: of a window, a stride and zeros; and of an image. Sums of
// several of them do not overflow.
inline constexpr int64_t kMostAlong = int64_t{1} << 24;
inline constexpr int64_t kMostPixels = int64_t{1} << 40;
// Of the tiles, zeros and windows of a bilinear convolution, of which products
// of three axes do not overflow either.
inline constexpr int64_t kMostOfTile = int64_t{1} << 16;

inline absl::Status CheckIntegers(absl::string_view op, absl::string_view what,
                                  absl::Span<const int64_t> found, size_t count,
                                  int64_t least, int64_t most) {
  bool good = found.size() == count;
  for (const int64_t each : found) good = good && each >= least && each <= most;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": Expected ", what, " to be ",
      count == 1 ? "an integer" : absl::StrCat(count, " integers, each"),
      " from ", least, " to ", most,
      ". Received: ", found.empty() ? "none" : absl::StrJoin(found, ", ")));
}

inline absl::Status CheckWindow(absl::string_view op,
                                absl::Span<const int64_t> window) {
  return CheckIntegers(op, "the window", window, 2, 1, kMostAlong);
}

inline absl::Status CheckImage(absl::string_view op,
                               absl::Span<const int64_t> sizes) {
  return CheckIntegers(op, "the sizes of images", sizes, sizes.size(), 0,
                       kMostPixels);
}

// The attribute `window`: its height and width.
template <typename Context>
absl::Status ReadWindow(Context* ctx, absl::string_view op,
                        std::vector<int64_t>* found) {
  const absl::Status status = ctx->GetAttr("window", found);
  return status.ok() ? CheckWindow(op, *found) : status;
}

// How a window moves, by the attributes `stride`, `padding` and, if the op has
// it, `zeros`.
template <typename Context>
absl::Status ReadPadded(Context* ctx, absl::string_view op,
                        windows::Padded* found) {
  std::string padding;
  std::vector<int64_t> zeros;
  int64_t stride;
  absl::Status status = ctx->GetAttr("stride", &stride);
  if (status.ok()) status = ctx->GetAttr("padding", &padding);
  if (status.ok()) {
    status = CheckIntegers(op, "the stride", {stride}, 1, 1, kMostAlong);
  }
  if (!ctx->GetAttr("zeros", &zeros).ok()) zeros.assign(4, 0);
  if (status.ok()) {
    status =
        CheckIntegers(op, "the zeros around images", zeros, 4, 0, kMostAlong);
  }
  if (!status.ok()) return status;
  *found = {stride, padding == "SAME", zeros[0], zeros[1], zeros[2], zeros[3]};
  return absl::OkStatus();
}

// The attribute `groups`: how many there are of an image's channels.
template <typename Context>
absl::Status ReadGroups(Context* ctx, absl::string_view op, int64_t* found) {
  const absl::Status status = ctx->GetAttr("groups", found);
  if (!status.ok()) return status;
  return CheckIntegers(op, "the groups", {*found}, 1, 1, kMostAlong);
}

// How tiles of a bilinear convolution lie, one number for each axis.
struct Tiling {
  std::vector<int64_t> step, before, after;  // outputs of a tile; zeros

  int axes() const { return static_cast<int>(step.size()); }
};

// By the attributes `step`, `pad_before` and `pad_after`.
template <typename Context>
absl::Status ReadTiling(Context* ctx, absl::string_view op, Tiling* found) {
  constexpr size_t kFewest = 1, kMost = 3;
  size_t axes = 0;
  const auto read = [&](const char* name, int64_t least,
                        std::vector<int64_t>* to) {
    const absl::Status status = ctx->GetAttr(name, to);
    if (!status.ok()) return status;
    if (axes == 0) axes = std::clamp(to->size(), kFewest, kMost);
    return CheckIntegers(op, name, *to, axes, least, kMostOfTile);
  };
  absl::Status status = read("step", 1, &found->step);
  if (status.ok()) status = read("pad_before", 0, &found->before);
  if (status.ok()) status = read("pad_after", 0, &found->after);
  return status;
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_OPS_BOUNDS_H_
