// The gradient of the largest of each window, for one instruction set; see
// vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_POOLING_MAX_GRADIENT_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_POOLING_MAX_GRADIENT_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/pooling/pool_impl.h"
#include "custom_ops/simd/vectors_impl.h"
#include "custom_ops/windows/sizes.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace pooling {
namespace {

using Mask = decltype(Eight{} < Eight{});

// Eight channels of a window.
TF_CONVPAR_INLINE void Give(const Window& of, int64_t n, const float* x,
                            const float* y, const float* dy, float* dx) {
  const Eight most = Load<Eight>(y), gradient = Load<Eight>(dy);
  Mask left = ~Mask{};
  for (int64_t row = 0; row < of.rows; ++row) {
    for (int64_t column = 0; column < of.columns; ++column) {
      const int64_t at = of.first + row * of.width + column * n;
      // Not "as large", so that no pixel is lost that is not a number.
      const Mask hit = left & ~(Load<Eight>(x + at) < most);
      Store(dx + at, Load<Eight>(dx + at) + (Eight)((Mask)gradient & hit));
      left &= ~hit;
    }
  }
}

// One channel of a window.
TF_CONVPAR_INLINE void GiveOne(const Window& of, int64_t n, const float* x,
                               const float* y, const float* dy, float* dx) {
  for (int64_t row = 0; row < of.rows; ++row) {
    for (int64_t column = 0; column < of.columns; ++column) {
      const int64_t at = of.first + row * of.width + column * n;
      if (x[at] < *y) continue;
      dx[at] += *dy;
      return;
    }
  }
}

void MaxGradient(const windows::Sizes& of, const float* x, const float* y,
                 const float* dy, float* dx) {
  const int64_t n = of.channels;
  std::fill_n(dx, of.height * of.width * n, 0.0f);
  for (int64_t i = 0; i < of.out_height; ++i) {
    const int64_t top = i * of.stride - of.top;
    const int64_t above = std::max<int64_t>(0, top);
    const int64_t below = std::min(of.height, top + of.window_height);
    for (int64_t j = 0; j < of.out_width; ++j) {
      const int64_t left = j * of.stride - of.left;
      const int64_t from = std::max<int64_t>(0, left);
      const int64_t to = std::min(of.width, left + of.window_width);
      const Window window = {(above * of.width + from) * n, below - above,
                             to - from, of.width * n, false};
      int64_t c = 0;
      for (; c + 8 <= n; c += 8) {
        Give(window, n, x + c, y + c, dy + c, dx + c);
      }
      for (; c < n; ++c) GiveOne(window, n, x + c, y + c, dy + c, dx + c);
      y += n, dy += n;
    }
  }
}

}  // namespace
}  // namespace pooling
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_POOLING_MAX_GRADIENT_IMPL_H_
