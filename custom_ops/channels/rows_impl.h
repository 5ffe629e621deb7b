// Loops over rows of channels, for one instruction set; see vectors_impl.h.
// None fuses multiplications and additions of these vectors.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_ROWS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_ROWS_IMPL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/activation_impl.h"
#include "custom_ops/channels/kernels.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_UNFUSED)
namespace tf_convpar {
namespace channels {
namespace {

using simd::Eight;
using simd::Load;
using simd::Store;

// Calls `run(c, count)` for channels from c on, eight at a time; for the last
// ones once more, with what is left.
template <typename Run>
TF_CONVPAR_INLINE void InLanes(int64_t width, const Run& run) {
  int64_t c = 0;
  for (; c + 8 <= width; c += 8) run(c, 8);
  if (c < width) run(c, width - c);
}

// Fetches what will be read in some time. Processors do so by themselves within
// a page of memory only, and a long computation of each number, as of `Silu`,
// leaves them few reads under way: without this it takes twice as long for maps
// that no cache holds (`benchmarks/normalization`). Numbers ahead, 2 KB:
constexpr int64_t kAhead = 512;

TF_CONVPAR_INLINE void FetchAhead(const float* p) {
  __builtin_prefetch(p + kAhead);
}

TF_CONVPAR_INLINE void FetchAhead(const float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) FetchAhead(p + i);
}

void AddRows(const float* __restrict x, int64_t rows, int64_t width,
             float* __restrict sums) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * width) {
    FetchAhead(x, 4 * width);
    for (int64_t c = 0; c < width; ++c) {
      sums[c] += (x[c] + x[c + width]) + (x[c + 2 * width] + x[c + 3 * width]);
    }
  }
  for (; r < rows; ++r, x += width) {
    for (int64_t c = 0; c < width; ++c) sums[c] += x[c];
  }
}

void AddSquares(const float* __restrict x, const float* __restrict mean,
                int64_t rows, int64_t width, float* __restrict sums) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2, x += 2 * width) {
    FetchAhead(x, 2 * width);
    for (int64_t c = 0; c < width; ++c) {
      const float a = x[c] - mean[c], b = x[c + width] - mean[c];
      sums[c] += a * a + b * b;
    }
  }
  for (; r < rows; ++r, x += width) {
    for (int64_t c = 0; c < width; ++c) {
      const float a = x[c] - mean[c];
      sums[c] += a * a;
    }
  }
}

void AddProducts(const float* __restrict y, const float* __restrict x,
                 const float* __restrict mean, int64_t rows, int64_t width,
                 float* __restrict sums, float* __restrict products) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2, x += 2 * width, y += 2 * width) {
    FetchAhead(x, 2 * width);
    FetchAhead(y, 2 * width);
    for (int64_t c = 0; c < width; ++c) {
      const float a = y[c], b = y[c + width];
      sums[c] += a + b;
      products[c] += a * (x[c] - mean[c]) + b * (x[c + width] - mean[c]);
    }
  }
  for (; r < rows; ++r, x += width, y += width) {
    for (int64_t c = 0; c < width; ++c) {
      sums[c] += y[c];
      products[c] += y[c] * (x[c] - mean[c]);
    }
  }
}

// `y` may be `a` or `b`: each number is read before it is written. Rows of one
// map may be a part of rows that are `wide`.
template <typename F>
TF_CONVPAR_INLINE void ScaleOneBy(const float* a, const float* s,
                                  const float* offset, int64_t rows,
                                  int64_t width, int64_t wide, float* y) {
  for (int64_t r = 0; r < rows; ++r, a += width, y += wide) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      FetchAhead(a + c);
      const Eight u = Load<Eight>(a + c, n) * Load<Eight>(s + c, n) +
                      Load<Eight>(offset + c, n);
      Store(y + c, F::Value(u), n);
    });
  }
}

template <typename F>
TF_CONVPAR_INLINE void ScaleTwoBy(Term first, Term second, const float* offset,
                                  int64_t rows, int64_t width, float* y) {
  const float* a = first.maps;
  const float* b = second.maps;
  for (int64_t r = 0; r < rows; ++r, a += width, b += width, y += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      FetchAhead(a + c);
      FetchAhead(b + c);
      const Eight u = Load<Eight>(a + c, n) * Load<Eight>(first.scale + c, n) +
                      Load<Eight>(b + c, n) * Load<Eight>(second.scale + c, n) +
                      Load<Eight>(offset + c, n);
      Store(y + c, F::Value(u), n);
    });
  }
}

void ScaleOne(Activation activation, const float* a, const float* s,
              const float* offset, int64_t rows, int64_t width, int64_t wide,
              float* y) {
  TF_CONVPAR_BY_ACTIVATION(activation, ScaleOneBy, a, s, offset, rows, width,
                           wide, y)
}

void ScaleTwo(Activation activation, Term first, Term second,
              const float* offset, int64_t rows, int64_t width, float* y) {
  TF_CONVPAR_BY_ACTIVATION(activation, ScaleTwoBy, first, second, offset, rows,
                           width, y)
}

template <typename F>
TF_CONVPAR_INLINE void AddThroughBy(Affine of, const float* dy, const float* x,
                                    const float* mean, int64_t rows,
                                    int64_t width, float* sums,
                                    float* products) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      FetchAhead(x + c);
      FetchAhead(dy + c);
      const Eight maps = Load<Eight>(x + c, n);
      const Eight u =
          maps * Load<Eight>(of.scale + c, n) + Load<Eight>(of.offset + c, n);
      const Eight g = F::Passed(u, Load<Eight>(dy + c, n));
      Store(sums + c, Load<Eight>(sums + c, n) + g, n);
      const Eight centred = maps - Load<Eight>(mean + c, n);
      Store(products + c, Load<Eight>(products + c, n) + g * centred, n);
    });
  }
}

void AddThrough(Activation activation, Affine of, const float* dy,
                const float* x, const float* mean, int64_t rows, int64_t width,
                float* sums, float* products) {
  TF_CONVPAR_BY_ACTIVATION(activation, AddThroughBy, of, dy, x, mean, rows,
                           width, sums, products)
}

// `dx` may be `dy` or `x`.
template <typename F>
TF_CONVPAR_INLINE void GradientBy(Affine of, const float* dy, const float* x,
                                  Affine by, int64_t rows, int64_t width,
                                  float* dx) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      FetchAhead(x + c);
      FetchAhead(dy + c);
      const Eight maps = Load<Eight>(x + c, n),
                  scale = Load<Eight>(of.scale + c, n);
      const Eight u = maps * scale + Load<Eight>(of.offset + c, n);
      const Eight g = F::Passed(u, Load<Eight>(dy + c, n));
      Store(dx + c,
            g * scale + maps * Load<Eight>(by.scale + c, n) +
                Load<Eight>(by.offset + c, n),
            n);
    });
  }
}

void GradientThrough(Activation activation, Affine of, const float* dy,
                     const float* x, Affine by, int64_t rows, int64_t width,
                     float* dx) {
  TF_CONVPAR_BY_ACTIVATION(activation, GradientBy, of, dy, x, by, rows, width,
                           dx)
}

// `dx` may be `dy` or `x`.
template <typename F>
TF_CONVPAR_INLINE void BiasedBy(const float* dy, const float* x,
                                const float* bias, int64_t rows, int64_t width,
                                float* dx, float* sums) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      FetchAhead(x + c);
      FetchAhead(dy + c);
      const Eight u = Load<Eight>(x + c, n) + Load<Eight>(bias + c, n);
      const Eight g = F::Passed(u, Load<Eight>(dy + c, n));
      Store(dx + c, g, n);
      Store(sums + c, Load<Eight>(sums + c, n) + g, n);
    });
  }
}

void BiasedGradient(Activation activation, const float* dy, const float* x,
                    const float* bias, int64_t rows, int64_t width, float* dx,
                    float* sums) {
  TF_CONVPAR_BY_ACTIVATION(activation, BiasedBy, dy, x, bias, rows, width, dx,
                           sums)
}

inline float Sum(Eight v) {
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += v[i];
  return sum;
}

// By what the channels of a pixel are normalized.
struct PixelMoments {
  float mean;
  float inverse;  // of the deviation
};

TF_CONVPAR_INLINE PixelMoments Of(const float* x, int64_t width,
                                  float epsilon) {
  Eight sums = {}, squares = {};
  InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
    sums += Load<Eight>(x + c, n);
  });
  const float mean = Sum(sums) / width;
  InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
    // Lanes beyond the last channel are the mean, which adds nothing.
    Eight u = mean - Eight{};
    std::memcpy(&u, x + c, n * sizeof(float));
    u -= mean;
    squares += u * u;
  });
  return {mean, 1 / std::sqrt(Sum(squares) / width + epsilon)};
}

void Normalize(const float* x, int64_t rows, int64_t width, float epsilon,
               float* y) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const PixelMoments of = Of(x, width, epsilon);
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      Store(y + c, (Load<Eight>(x + c, n) - of.mean) * of.inverse, n);
    });
  }
}

void NormalizeBy(const float* x, const float* gamma, const float* beta,
                 int64_t rows, int64_t width, float epsilon, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const PixelMoments of = Of(x, width, epsilon);
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Eight u = (Load<Eight>(x + c, n) - of.mean) * of.inverse;
      Store(y + c, u * Load<Eight>(gamma + c, n) + Load<Eight>(beta + c, n), n);
    });
  }
}

// With h = dy gamma and u for normalized x: (h - mean(h) - u mean(h u)) / root.
void NormalizeGradient(const float* dy, const float* x, const float* gamma,
                       int64_t rows, int64_t width, float epsilon, float* dx,
                       float* sums, float* products) {
  std::fill_n(sums, width, 0.0f);
  std::fill_n(products, width, 0.0f);
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    const PixelMoments of = Of(x, width, epsilon);
    Eight all = {}, along = {};
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Eight u = (Load<Eight>(x + c, n) - of.mean) * of.inverse;
      const Eight g = Load<Eight>(dy + c, n), h = g * Load<Eight>(gamma + c, n);
      all += h;
      along += h * u;
      Store(sums + c, Load<Eight>(sums + c, n) + g, n);
      Store(products + c, Load<Eight>(products + c, n) + g * u, n);
    });
    const float by_all = Sum(all) / width, by_maps = Sum(along) / width;
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Eight u = (Load<Eight>(x + c, n) - of.mean) * of.inverse;
      const Eight h = Load<Eight>(dy + c, n) * Load<Eight>(gamma + c, n);
      Store(dx + c, (h - by_all - u * by_maps) * of.inverse, n);
    });
  }
}

}  // namespace
}  // namespace channels
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_ROWS_IMPL_H_
