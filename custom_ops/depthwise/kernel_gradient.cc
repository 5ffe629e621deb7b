#include "custom_ops/depthwise/kernel_gradient.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Compiled for several instruction sets, of which the loader takes the widest
// that the processor has.
#if defined(__x86_64__) && defined(__GLIBC__)
#define CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE inline __attribute__((always_inline))

namespace tf_convpar {
namespace depthwise {
namespace {

typedef float Lane __attribute__((vector_size(8 * sizeof(float))));

INLINE Lane Loaded(const float* p) {
  Lane v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

INLINE void Store(Lane v, float* p) { std::memcpy(p, &v, sizeof(v)); }

// Some channels, as so many vectors of eight: two fill a line of the cache.
template <int kLanes>
struct Wide {
  static constexpr int64_t kChannels = 8 * kLanes;
  Lane lanes[kLanes];

  INLINE void Load(const float* p) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = Loaded(p + 8 * l);
  }
  INLINE void Add(const float* p, const Wide& factor) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] += Loaded(p + 8 * l) * factor.lanes[l];
    }
  }
  INLINE void Write(float* p) const {
    for (int l = 0; l < kLanes; ++l) Store(lanes[l], p + 8 * l);
  }
};

// What is left of them, one at a time.
struct Narrow {
  static constexpr int64_t kChannels = 1;
  float lane;

  INLINE void Load(const float* p) { lane = *p; }
  INLINE void Add(const float* p, const Narrow& factor) {
    lane += *p * factor.lane;
  }
  INLINE void Write(float* p) const { *p = lane; }
};

// Columns from `first` on of a row of the window, `kColumns` of them, for the
// channels at `x`, `dy` and `sums`. Sums stay in registers along a row.
template <typename V, int kColumns>
INLINE void AddColumns(const Sizes& of, const float* x, const float* dy,
                       int64_t first, float* sums) {
  const int64_t n = of.channels;
  // Feature maps from `inner` to `outer` see pixels of the image alone.
  const int64_t shift = first - of.left;
  const int64_t room = of.width - kColumns - shift;
  const int64_t inner = std::min(
      of.out_width, shift < 0 ? (of.stride - 1 - shift) / of.stride : 0);
  const int64_t outer = std::max(
      inner, room < 0 ? 0 : std::min(of.out_width, room / of.stride + 1));
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
INLINE void AddRow(const Sizes& of, const float* x, const float* dy,
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
INLINE void AddChannels(const Sizes& of, const float* x, const float* dy,
                        int64_t begin, int64_t end, float* sums) {
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

CLONES void AddRows(const Sizes& of, const float* x, const float* dy,
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
