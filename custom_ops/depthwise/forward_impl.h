// A depthwise convolution, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_FORWARD_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_FORWARD_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/activation_impl.h"
#include "custom_ops/depthwise/wide_impl.h"
#include "custom_ops/simd/vectors_impl.h"
#include "custom_ops/windows/sizes.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace depthwise {
namespace {

// Feature maps side by side, which read each weight of the kernel once.
constexpr int kColumns = 4;

// `kMany` columns from `j` on of the row at `y`, of the channels at `x`.
template <typename V, typename F, int kMany>
TF_CONVPAR_INLINE void Make(const windows::Sizes& of, const float* x,
                            const float* kernel, const float* bias,
                            int64_t above, int64_t below, int64_t from,
                            int64_t to, int64_t j, float* y) {
  const int64_t n = of.channels;
  V sum[kMany];
#pragma GCC unroll 4
  for (int m = 0; m < kMany; ++m) sum[m].Load(bias);
  for (int64_t a = above; a < below; ++a) {
    const float* at = x + (a * of.width + j * of.stride - of.left) * n;
    const float* weight = kernel + a * of.window_width * n;
    for (int64_t b = from; b < to; ++b) {
      V k;
      k.Load(weight + b * n);
#pragma GCC unroll 4
      for (int m = 0; m < kMany; ++m) {
        sum[m].Add(at + (m * of.stride + b) * n, k);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kMany; ++m) {
    sum[m].template Apply<F>();
    sum[m].Write(y + (j + m) * n);
  }
}

// What is asked for some columns of a row of feature maps.
struct Columns {
  const float *x, *kernel, *bias;
  int64_t above, below, from, to, j;
  float* y;
};

// The same for channels from `*c` on, while so many are left as V has.
template <typename V, typename F, int kMany>
TF_CONVPAR_INLINE void MakeMany(const windows::Sizes& of, const Columns& at,
                                int64_t* c) {
  for (; *c + V::kChannels <= of.channels; *c += V::kChannels) {
    Make<V, F, kMany>(of, at.x + *c, at.kernel + *c, at.bias + *c, at.above,
                      at.below, at.from, at.to, at.j, at.y + *c);
  }
}

// The same for all channels, one after the other: what neighbours of a feature
// map read again is then still in the nearest cache. One column alone has more
// channels at a time, as a sum waits for the one before.
template <typename F, int kMany>
TF_CONVPAR_INLINE void MakeAll(const windows::Sizes& of, const Columns& at) {
  constexpr int kVectors = kMany > 1 ? 2 : 4;
  int64_t c = 0;
  if constexpr (simd::kLanes > 8) {
    MakeMany<Wide<simd::Vector, kVectors>, F, kMany>(of, at, &c);
    MakeMany<Wide<simd::Vector>, F, kMany>(of, at, &c);
  } else {
    MakeMany<Wide<Eight, kVectors>, F, kMany>(of, at, &c);
  }
  MakeMany<Wide<Eight>, F, kMany>(of, at, &c);
  MakeMany<Narrow, F, kMany>(of, at, &c);
}

template <typename F>
TF_CONVPAR_INLINE void Rows(const windows::Sizes& of, const float* x,
                            const float* kernel, const float* bias,
                            int64_t begin, int64_t end, float* y) {
  int64_t inner, outer;
  of.Inside(0, of.window_width, &inner, &outer);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i * of.stride - of.top;
    const int64_t above = std::max<int64_t>(0, -first);
    const int64_t below = std::min(of.window_height, of.height - first);
    // Where its window begins.
    const float* const own = x + first * of.width * of.channels;
    float* const row = y + i * of.out_width * of.channels;
    for (int64_t j = 0; j < of.out_width;) {
      if (j >= inner && j + kColumns <= outer) {
        MakeAll<F, kColumns>(
            of, {own, kernel, bias, above, below, 0, of.window_width, j, row});
        j += kColumns;
        continue;
      }
      // At the border some of the window sees zeros.
      const int64_t left = j * of.stride - of.left;
      const int64_t from = std::max<int64_t>(0, -left);
      const int64_t to = std::min(of.window_width, of.width - left);
      MakeAll<F, 1>(of, {own, kernel, bias, above, below, from, to, j, row});
      ++j;
    }
  }
}

void Forward(const windows::Sizes& of, channels::Activation activation,
             const float* x, const float* kernel, const float* bias,
             int64_t begin, int64_t end, float* y) {
  TF_CONVPAR_BY_ACTIVATION(activation, Rows, of, x, kernel, bias, begin, end, y)
}

}  // namespace
}  // namespace depthwise
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_FORWARD_IMPL_H_
