// The kernel gradient of a depthwise convolution, for one instruction set; see
// vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_KERNEL_GRADIENT_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_KERNEL_GRADIENT_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/depthwise/wide_impl.h"
#include "custom_ops/simd/vectors_impl.h"
#include "custom_ops/windows/sizes.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace depthwise {
namespace {

// Columns from `first` on of a row of the window, `kColumns` of them, for the
// channels at `x`, `dy` and `sums`. Sums stay in registers along a row.
template <typename V, int kColumns>
TF_CONVPAR_INLINE void AddColumns(const windows::Sizes& of, const float* x,
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
TF_CONVPAR_INLINE void AddRow(const windows::Sizes& of, const float* x,
                              const float* dy, float* sums) {
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
TF_CONVPAR_INLINE void AddChannels(const windows::Sizes& of, const float* x,
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

void KernelGradient(const windows::Sizes& of, const float* x, const float* dy,
                    int64_t begin, int64_t end, float* sums) {
  int64_t c = 0;
  for (; c + 16 <= of.channels; c += 16) {
    AddChannels<Wide<Eight, 2>>(of, x + c, dy + c, begin, end, sums + c);
  }
  for (; c + 8 <= of.channels; c += 8) {
    AddChannels<Wide<Eight>>(of, x + c, dy + c, begin, end, sums + c);
  }
  for (; c < of.channels; ++c) {
    AddChannels<Narrow>(of, x + c, dy + c, begin, end, sums + c);
  }
}

}  // namespace
}  // namespace depthwise
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_KERNEL_GRADIENT_IMPL_H_
