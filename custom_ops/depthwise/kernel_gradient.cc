#include "custom_ops/depthwise/kernel_gradient.h"

#include <algorithm>
#include <cstdint>

#include "custom_ops/windows/lanes.h"

namespace tf_convpar {
namespace depthwise {
namespace {

using windows::Narrow;
using windows::Wide;

// Columns from `first` on of a row of the window, `kColumns` of them, for the
// channels at `x`, `dy` and `sums`. Sums stay in registers along a row.
template <typename V, int kColumns>
INLINE void AddColumns(const windows::Sizes& of, const float* x,
                       const float* dy, int64_t first, float* sums) {
  const int64_t n = of.channels;
  const int64_t shift = first - of.left;
  int64_t inner, outer;
  of.Inside(first, kColumns, &inner, &outer);
  V sum[kColumns];
#pragma GCC unroll 8
  for (int b = 0; b < kColumns; ++b) sum[b].Load(sums + b * n);
  const float* at = x + (inner * of.stride + shift) * n;
  for (int64_t j = inner; j < outer; ++j, at += of.stride * n) {
    V d;
    d.Load(dy + j * n);
#pragma GCC unroll 8
    for (int b = 0; b < kColumns; ++b) sum[b].Add(at + b * n, d);
  }
#pragma GCC unroll 8
  for (int b = 0; b < kColumns; ++b) sum[b].Write(sums + b * n);
  // The others see a part of the window.
  for (int64_t j = 0; j < of.out_width; ++j) {
    if (j == inner) j = outer;
    if (j >= of.out_width) break;
    V d;
    d.Load(dy + j * n);
    for (int b = 0; b < kColumns; ++b) {
      const int64_t column = j * of.stride + b + shift;
      if (column < 0 || column >= of.width) continue;
      V some;
      some.Load(sums + b * n);
      some.Add(x + column * n, d);
      some.Write(sums + b * n);
    }
  }
}

template <typename V>
INLINE void AddRow(const windows::Sizes& of, const float* x, const float* dy,
                   float* sums) {
  int64_t first = 0;
  while (first < of.window_width) {
    const int64_t left = of.window_width - first;
    float* const own = sums + first * of.channels;
    if (left >= 7) {
      AddColumns<V, 7>(of, x, dy, first, own);
      first += 7;
    } else if (left >= 5) {
      AddColumns<V, 5>(of, x, dy, first, own);
      first += 5;
    } else if (left >= 3) {
      AddColumns<V, 3>(of, x, dy, first, own);
      first += 3;
    } else {
      AddColumns<V, 1>(of, x, dy, first, own);
      first += 1;
    }
  }
}

// Rows of the window go over the same rows of the image while these are close.
template <typename V>
INLINE void AddChannels(const windows::Sizes& of, const float* x,
                        const float* dy, int64_t begin, int64_t end,
                        float* sums) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t a = 0; a < of.window_height; ++a) {
      const int64_t row = i * of.stride + a - of.top;
      if (row < 0 || row >= of.height) continue;
      AddRow<V>(of, x + row * of.width * of.channels,
                dy + i * of.out_width * of.channels,
                sums + a * of.window_width * of.channels);
    }
  }
}

}  // namespace

CLONES void AddRows(const windows::Sizes& of, const float* x, const float* dy,
                    int64_t begin, int64_t end, float* sums) {
  int64_t c = 0;
  for (; c + 16 <= of.channels; c += 16) {
    AddChannels<Wide<2>>(of, x + c, dy + c, begin, end, sums + c);
  }
  for (; c + 8 <= of.channels; c += 8) {
    AddChannels<Wide<1>>(of, x + c, dy + c, begin, end, sums + c);
  }
  for (; c < of.channels; ++c) {
    AddChannels<Narrow>(of, x + c, dy + c, begin, end, sums + c);
  }
}

}  // namespace depthwise
}  // namespace tf_convpar
