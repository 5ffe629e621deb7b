#include "custom_ops/pooling/max_gradient.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "custom_ops/windows/lanes.h"

namespace tf_convpar {
namespace pooling {
namespace {

using windows::Lane;
using windows::Loaded;
using windows::Store;

typedef int32_t Mask __attribute__((vector_size(sizeof(Lane))));

// All bits of the lanes that a mask takes, none of the others.
INLINE Lane Masked(Lane v, Mask mask) {
  Mask bits;
  std::memcpy(&bits, &v, sizeof(v));
  bits &= mask;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}

// The pixels of one window, which lie within the image.
struct Window {
  int64_t first, rows, columns, width;  // of pixels, times channels
};

// Eight channels of a window.
INLINE void Give(const Window& of, int64_t n, const float* x, const float* y,
                 const float* dy, float* dx) {
  const Lane most = Loaded(y), gradient = Loaded(dy);
  Mask left = ~Mask{};
  for (int64_t row = 0; row < of.rows; ++row) {
    for (int64_t column = 0; column < of.columns; ++column) {
      const int64_t at = of.first + row * of.width + column * n;
      // Not "as large", so that no pixel is lost that is not a number.
      const Mask hit = left & ~(Loaded(x + at) < most);
      Store(Loaded(dx + at) + Masked(gradient, hit), dx + at);
      left &= ~hit;
    }
  }
}

// One channel of a window.
INLINE void GiveOne(const Window& of, int64_t n, const float* x, const float* y,
                    const float* dy, float* dx) {
  for (int64_t row = 0; row < of.rows; ++row) {
    for (int64_t column = 0; column < of.columns; ++column) {
      const int64_t at = of.first + row * of.width + column * n;
      if (x[at] < *y) continue;
      dx[at] += *dy;
      return;
    }
  }
}

}  // namespace

CLONES void MaxGradient(const windows::Sizes& of, const float* x,
                        const float* y, const float* dy, float* dx) {
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
                             to - from, of.width * n};
      int64_t c = 0;
      for (; c + 8 <= n; c += 8) {
        Give(window, n, x + c, y + c, dy + c, dx + c);
      }
      for (; c < n; ++c) GiveOne(window, n, x + c, y + c, dy + c, dx + c);
      y += n, dy += n;
    }
  }
}

}  // namespace pooling
}  // namespace tf_convpar
