// Normalization of the channels of each pixel by themselves, for one
// instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_PIXELS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_PIXELS_IMPL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "custom_ops/channels/rows_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_UNFUSED)
namespace tf_convpar {
namespace channels {
namespace {

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

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_PIXELS_IMPL_H_
