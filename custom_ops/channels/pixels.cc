#include "custom_ops/channels/pixels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "custom_ops/channels/lanes.h"

namespace tf_convpar {
namespace channels {
namespace {

// By what the channels of a pixel are normalized.
struct Moments {
  float mean;
  float inverse;  // of the deviation
};

TF_CONVPAR_INLINE Moments Of(const float* x, int64_t width, float epsilon) {
  Lanes sums = {}, squares = {};
  InLanes(width, [&](int64_t c, int64_t n)
                     TF_CONVPAR_ALWAYS_INLINE { sums += Load(x + c, n); });
  const float mean = SumOf(sums) / width;
  InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
    // Lanes beyond the last channel are the mean, which adds nothing.
    Lanes u = mean - Lanes{};
    std::memcpy(&u, x + c, n * sizeof(float));
    u -= mean;
    squares += u * u;
  });
  return {mean, 1 / std::sqrt(SumOf(squares) / width + epsilon)};
}

TF_CONVPAR_CLONES void Normalize(const float* x, int64_t rows, int64_t width,
                                 float epsilon, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const Moments of = Of(x, width, epsilon);
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      Store((Load(x + c, n) - of.mean) * of.inverse, n, y + c);
    });
  }
}

TF_CONVPAR_CLONES void NormalizeAndScale(const float* x, const float* gamma,
                                         const float* beta, int64_t rows,
                                         int64_t width, float epsilon,
                                         float* y) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const Moments of = Of(x, width, epsilon);
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes u = (Load(x + c, n) - of.mean) * of.inverse;
      Store(u * Load(gamma + c, n) + Load(beta + c, n), n, y + c);
    });
  }
}

// With h = dy gamma and u for normalized x: (h - mean(h) - u mean(h u)) / root.
TF_CONVPAR_CLONES void Gradient(const float* dy, const float* x,
                                const float* gamma, int64_t rows, int64_t width,
                                float epsilon, float* dx, float* sums,
                                float* products) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    const Moments of = Of(x, width, epsilon);
    Lanes all = {}, along = {};
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes u = (Load(x + c, n) - of.mean) * of.inverse;
      const Lanes g = Load(dy + c, n), h = g * Load(gamma + c, n);
      all += h;
      along += h * u;
      Store(Load(sums + c, n) + g, n, sums + c);
      Store(Load(products + c, n) + g * u, n, products + c);
    });
    const float by_all = SumOf(all) / width, by_maps = SumOf(along) / width;
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes u = (Load(x + c, n) - of.mean) * of.inverse;
      const Lanes h = Load(dy + c, n) * Load(gamma + c, n);
      Store((h - by_all - u * by_maps) * of.inverse, n, dx + c);
    });
  }
}

}  // namespace

void NormalizeRows(const float* x, int64_t rows, int64_t channels,
                   float epsilon, float* y) {
  Normalize(x, rows, channels, epsilon, y);
}

void NormalizeRows(const float* x, const float* gamma, const float* beta,
                   int64_t rows, int64_t channels, float epsilon, float* y) {
  NormalizeAndScale(x, gamma, beta, rows, channels, epsilon, y);
}

void NormalizedGradient(const float* dy, const float* x, const float* gamma,
                        int64_t rows, int64_t channels, float epsilon,
                        float* dx, float* sums, float* products) {
  std::fill_n(sums, channels, 0.0f);
  std::fill_n(products, channels, 0.0f);
  Gradient(dy, x, gamma, rows, channels, epsilon, dx, sums, products);
}

}  // namespace channels
}  // namespace tf_convpar
