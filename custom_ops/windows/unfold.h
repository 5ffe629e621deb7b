// Images with zeros around them, and their windows as rows of a matrix.

#ifndef TF_CONVPAR_CUSTOM_OPS_WINDOWS_UNFOLD_H_
#define TF_CONVPAR_CUSTOM_OPS_WINDOWS_UNFOLD_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/windows/sizes.h"

namespace tf_convpar {
namespace windows {

// `count` pixels of a row of an image from column `j` on; zeros beside it.
inline void CopyRow(const Sizes& of, const float* row, int64_t j, int64_t count,
                    float* to) {
  const int64_t n = of.channels;
  const int64_t from = std::clamp<int64_t>(-j, 0, count);
  const int64_t until = std::clamp<int64_t>(of.width - j, from, count);
  std::fill_n(to, from * n, 0.0f);
  std::copy_n(row + (j + from) * n, (until - from) * n, to + from * n);
  std::fill_n(to + until * n, (count - until) * n, 0.0f);
}

// `rows` by `columns` pixels of an image from (i, j) on; zeros around it.
inline void CopyPart(const Sizes& of, const float* image, int64_t i, int64_t j,
                     int64_t rows, int64_t columns, float* to) {
  const int64_t n = of.channels;
  for (const int64_t last = i + rows; i < last; ++i, to += columns * n) {
    if (i < 0 || i >= of.height) {
      std::fill_n(to, columns * n, 0.0f);
    } else {
      CopyRow(of, image + i * of.width * n, j, columns, to);
    }
  }
}

// The windows of some pixels of feature maps, which are counted over all
// images.
inline void Unfold(const Sizes& of, const float* images, int64_t begin,
                   int64_t end, float* to) {
  const int64_t image = of.height * of.width * of.channels;
  const int64_t window = of.window_height * of.window_width * of.channels;
  const int64_t maps = of.out_height * of.out_width;
  for (int64_t pixel = begin; pixel < end; ++pixel, to += window) {
    CopyPart(of, images + pixel / maps * image,
             pixel % maps / of.out_width * of.stride - of.top,
             pixel % of.out_width * of.stride - of.left, of.window_height,
             of.window_width, to);
  }
}

// An image as `of.WithZeros()` says.
inline void Pad(const Sizes& of, const float* image, float* to) {
  const Sizes all = of.WithZeros();
  CopyPart(of, image, -of.top, -of.left, all.height, all.width, to);
}

}  // namespace windows
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_WINDOWS_UNFOLD_H_
