// The largest, or the mean, of each window, for one instruction set; see
// vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "custom_ops/pooling/pool.h"
#include "custom_ops/simd/vectors_impl.h"
#include "custom_ops/windows/sizes.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace pooling {
namespace {

using simd::Eight;
using simd::Load;
using simd::Store;

// The pixels of one window, which lie within the image.
struct Window {
  int64_t first, rows, columns, width;  // of pixels, times channels
  bool cut;                             // whether others do not
};

// What is made of two, of numbers or of vectors; and what a window, a row after
// others and its end begin with.

// What is no number is left out, as by TensorFlow: it never comes first.
struct Larger {
  static constexpr float kFirst = std::numeric_limits<float>::lowest();

  template <typename V>
  static TF_CONVPAR_INLINE V Of(V a, V b) {
    return b > a ? b : a;
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Begun(V found, V pixel) {
    return Of(found, pixel);
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Ended(V, V own, bool) {
    return own;
  }
};

// Of rows first, which loses less of many numbers.
struct Sum {
  static constexpr float kFirst = 0;

  template <typename V>
  static TF_CONVPAR_INLINE V Of(V a, V b) {
    return a + b;
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Begun(V, V pixel) {
    return pixel;
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Ended(V found, V own, bool first) {
    return first ? own : found + own;
  }
};

constexpr int64_t kFloats = sizeof(Eight) / sizeof(float);

// kVectors vectors of channels of a window.
template <typename F, int kVectors>
TF_CONVPAR_INLINE void Fold(const Window& of, int64_t n, const float* x,
                            Eight* found) {
  for (int v = 0; v < kVectors; ++v) found[v] = F::kFirst - Eight{};
  for (int64_t row = 0; row < of.rows; ++row) {
    const float* pixel = x + of.first + row * of.width;
    Eight own[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      own[v] = F::Begun(found[v], Load<Eight>(pixel + v * kFloats));
    }
    for (int64_t column = 1; column < of.columns; ++column) {
      pixel += n;
      for (int v = 0; v < kVectors; ++v) {
        own[v] = F::Of(own[v], Load<Eight>(pixel + v * kFloats));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      found[v] = F::Ended(found[v], own[v], row == 0);
    }
  }
}

template <typename F>
TF_CONVPAR_INLINE float FoldOne(const Window& of, int64_t n, const float* x) {
  float found = F::kFirst;
  for (int64_t row = 0; row < of.rows; ++row) {
    const float* pixel = x + of.first + row * of.width;
    float own = F::Begun(found, *pixel);
    for (int64_t column = 1; column < of.columns; ++column) {
      own = F::Of(own, pixel[column * n]);
    }
    found = F::Ended(found, own, row == 0);
  }
  return found;
}

template <typename V>
TF_CONVPAR_INLINE V Ended(const Window& of, Kind kind, V found) {
  if (kind == Kind::kMean) return found * (1.0f / (of.rows * of.columns));
  const bool zeros = kind == Kind::kLargestWithZeros && of.cut;
  return zeros ? Larger::Of(found, V{}) : found;
}

template <typename F, int kVectors>
TF_CONVPAR_INLINE void Make(const Window& of, Kind kind, int64_t n,
                            const float* x, float* y) {
  Eight found[kVectors];
  Fold<F, kVectors>(of, n, x, found);
  for (int v = 0; v < kVectors; ++v) {
    Store(y + v * kFloats, Ended(of, kind, found[v]));
  }
}

template <typename F>
TF_CONVPAR_INLINE void Rows(const windows::Sizes& of, Kind kind, const float* x,
                            int64_t begin, int64_t end, float* y) {
  const int64_t n = of.channels;
  y += begin * of.out_width * n;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t top = i * of.stride - of.top;
    const int64_t above = std::max<int64_t>(0, top);
    const int64_t below = std::min(of.height, top + of.window_height);
    for (int64_t j = 0; j < of.out_width; ++j, y += n) {
      const int64_t left = j * of.stride - of.left;
      const int64_t from = std::max<int64_t>(0, left);
      const int64_t to = std::min(of.width, left + of.window_width);
      Window window = {(above * of.width + from) * n,
                       std::max<int64_t>(0, below - above), to - from,
                       of.width * n};
      // Of a window beside the image nothing is read.
      if (window.columns <= 0) window.rows = 0;
      window.cut =
          window.rows < of.window_height || window.columns < of.window_width;
      int64_t c = 0;
      for (; c + 32 <= n; c += 32) Make<F, 4>(window, kind, n, x + c, y + c);
      for (; c + 8 <= n; c += 8) Make<F, 1>(window, kind, n, x + c, y + c);
      for (; c < n; ++c) {
        y[c] = Ended(window, kind, FoldOne<F>(window, n, x + c));
      }
    }
  }
}

void Pool(const windows::Sizes& of, Kind kind, const float* x, int64_t begin,
          int64_t end, float* y) {
  if (kind == Kind::kMean) {
    Rows<Sum>(of, kind, x, begin, end, y);
  } else {
    Rows<Larger>(of, kind, x, begin, end, y);
  }
}

}  // namespace
}  // namespace pooling
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_IMPL_H_
