#include "custom_ops/channels/rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/channels/lanes.h"

namespace tf_convpar {
namespace channels {
namespace {

// Of a block: a part of the second cache.
constexpr int64_t kBlock = 32 << 10;
// Rows of few channels are taken several for one, so that loops are long.
constexpr int64_t kWide = 64;

int64_t Beside(int64_t channels) {
  return std::max<int64_t>(1, kWide / std::max<int64_t>(1, channels));
}

std::vector<float> Repeated(const float* values, int64_t channels,
                            int64_t times) {
  std::vector<float> found;
  found.reserve(channels * times);
  for (int64_t i = 0; i < times; ++i) {
    found.insert(found.end(), values, values + channels);
  }
  return found;
}

// Adds up what belongs to the same channel.
void Fold(const std::vector<float>& wide, int64_t channels, float* sums) {
  std::fill_n(sums, channels, 0.0f);
  for (size_t i = 0; i < wide.size(); i += channels) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += wide[i + c];
  }
}

TF_CONVPAR_CLONES void AddRows(const float* __restrict x, int64_t rows,
                               int64_t width, float* __restrict sums) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * width) {
    for (int64_t c = 0; c < width; ++c) {
      sums[c] += (x[c] + x[c + width]) + (x[c + 2 * width] + x[c + 3 * width]);
    }
  }
  for (; r < rows; ++r, x += width) {
    for (int64_t c = 0; c < width; ++c) sums[c] += x[c];
  }
}

TF_CONVPAR_CLONES void AddSquares(const float* __restrict x,
                                  const float* __restrict mean, int64_t rows,
                                  int64_t width, float* __restrict sums) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2, x += 2 * width) {
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

TF_CONVPAR_CLONES void AddProducts(const float* __restrict y,
                                   const float* __restrict x,
                                   const float* __restrict mean, int64_t rows,
                                   int64_t width, float* __restrict sums,
                                   float* __restrict products) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2, x += 2 * width, y += 2 * width) {
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
      const Lanes u = Load(a + c, n) * Load(s + c, n) + Load(offset + c, n);
      Store(F::Value(u), n, y + c);
    });
  }
}

// Maps, and their factor for each channel.
struct Term {
  const float* maps;
  const float* scale;
};

template <typename F>
TF_CONVPAR_INLINE void ScaleTwoBy(Term first, Term second, const float* offset,
                                  int64_t rows, int64_t width, float* y) {
  const float* a = first.maps;
  const float* b = second.maps;
  for (int64_t r = 0; r < rows; ++r, a += width, b += width, y += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes u = Load(a + c, n) * Load(first.scale + c, n) +
                      Load(b + c, n) * Load(second.scale + c, n) +
                      Load(offset + c, n);
      Store(F::Value(u), n, y + c);
    });
  }
}

// Calls `run<F>(...)` with the F of an activation.
#define BY_ACTIVATION(f, run, ...)     \
  switch (f) {                         \
    case Activation::kLinear:          \
      return run<Linear>(__VA_ARGS__); \
    case Activation::kRelu:            \
      return run<Relu>(__VA_ARGS__);   \
    case Activation::kRelu6:           \
      return run<Relu6>(__VA_ARGS__);  \
    case Activation::kSilu:            \
      return run<Silu>(__VA_ARGS__);   \
    case Activation::kGelu:            \
      return run<Gelu>(__VA_ARGS__);   \
  }

TF_CONVPAR_CLONES void ScaleOne(Activation f, const float* a, const float* s,
                                const float* offset, int64_t rows,
                                int64_t width, int64_t wide, float* y){
    BY_ACTIVATION(f, ScaleOneBy, a, s, offset, rows, width, wide, y)}

TF_CONVPAR_CLONES
    void ScaleTwo(Activation f, Term first, Term second, const float* offset,
                  int64_t rows, int64_t width, float* y) {
  BY_ACTIVATION(f, ScaleTwoBy, first, second, offset, rows, width, y)
}

// A vector for each of a normalization's numbers by channel.
struct Affine {
  const float* scale;
  const float* offset;
};

template <typename F>
TF_CONVPAR_INLINE void AddThroughBy(Affine of, const float* dy, const float* x,
                                    const float* mean, int64_t rows,
                                    int64_t width, float* sums,
                                    float* products) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes maps = Load(x + c, n);
      const Lanes u = maps * Load(of.scale + c, n) + Load(of.offset + c, n);
      const Lanes g = F::Passed(u, Load(dy + c, n));
      Store(Load(sums + c, n) + g, n, sums + c);
      const Lanes centred = maps - Load(mean + c, n);
      Store(Load(products + c, n) + g * centred, n, products + c);
    });
  }
}

TF_CONVPAR_CLONES void AddThrough(Activation f, Affine of, const float* dy,
                                  const float* x, const float* mean,
                                  int64_t rows, int64_t width, float* sums,
                                  float* products) {
  BY_ACTIVATION(f, AddThroughBy, of, dy, x, mean, rows, width, sums, products)
}

// `dx` may be `dy` or `x`.
template <typename F>
TF_CONVPAR_INLINE void GradientBy(Affine of, const float* dy, const float* x,
                                  Affine by, int64_t rows, int64_t width,
                                  float* dx) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes maps = Load(x + c, n), scale = Load(of.scale + c, n);
      const Lanes u = maps * scale + Load(of.offset + c, n);
      const Lanes g = F::Passed(u, Load(dy + c, n));
      Store(g * scale + maps * Load(by.scale + c, n) + Load(by.offset + c, n),
            n, dx + c);
    });
  }
}

TF_CONVPAR_CLONES void GradientThrough(Activation f, Affine of, const float* dy,
                                       const float* x, Affine by, int64_t rows,
                                       int64_t width, float* dx) {
  BY_ACTIVATION(f, GradientBy, of, dy, x, by, rows, width, dx)
}

// `dx` may be `dy` or `x`.
template <typename F>
TF_CONVPAR_INLINE void BiasedBy(const float* dy, const float* x,
                                const float* bias, int64_t rows, int64_t width,
                                float* dx, float* sums) {
  for (int64_t r = 0; r < rows; ++r, x += width, dy += width, dx += width) {
    InLanes(width, [&](int64_t c, int64_t n) TF_CONVPAR_ALWAYS_INLINE {
      const Lanes u = Load(x + c, n) + Load(bias + c, n);
      const Lanes g = F::Passed(u, Load(dy + c, n));
      Store(g, n, dx + c);
      Store(Load(sums + c, n) + g, n, sums + c);
    });
  }
}

TF_CONVPAR_CLONES void BiasedGradient(Activation f, const float* dy,
                                      const float* x, const float* bias,
                                      int64_t rows, int64_t width, float* dx,
                                      float* sums) {
  BY_ACTIVATION(f, BiasedBy, dy, x, bias, rows, width, dx, sums)
}

#undef BY_ACTIVATION

}  // namespace

int64_t RowsPerBlock(int64_t channels) {
  const int64_t beside = Beside(channels);
  const int64_t rows = kBlock / std::max<int64_t>(1, beside * channels);
  return std::max<int64_t>(1, rows) * beside;
}

void Moments(const float* x, int64_t rows, int64_t channels, float* mean,
             float* squares) {
  const int64_t beside = Beside(channels), width = beside * channels;
  const int64_t wide_rows = rows / beside, left = rows % beside;
  const float* rest = x + wide_rows * width;
  std::vector<float> sums(width, 0.0f);
  AddRows(x, wide_rows, width, sums.data());
  AddRows(rest, left, channels, sums.data());
  Fold(sums, channels, mean);
  for (int64_t c = 0; c < channels; ++c) mean[c] /= rows;
  const std::vector<float> means = Repeated(mean, channels, beside);
  std::fill(sums.begin(), sums.end(), 0.0f);
  AddSquares(x, means.data(), wide_rows, width, sums.data());
  AddSquares(rest, mean, left, channels, sums.data());
  Fold(sums, channels, squares);
}

void Sums(const float* y, const float* x, const float* mean, int64_t rows,
          int64_t channels, float* sums, float* products) {
  const int64_t beside = Beside(channels), width = beside * channels;
  const int64_t wide_rows = rows / beside, left = rows % beside;
  const std::vector<float> means = Repeated(mean, channels, beside);
  std::vector<float> s(width, 0.0f), p(width, 0.0f);
  AddProducts(y, x, means.data(), wide_rows, width, s.data(), p.data());
  AddProducts(y + wide_rows * width, x + wide_rows * width, mean, left,
              channels, s.data(), p.data());
  Fold(s, channels, sums);
  Fold(p, channels, products);
}

void ScaleInto(Activation activation, const float* x, const float* scale,
               const float* offset, int64_t rows, int64_t channels,
               int64_t wide, float* y) {
  ScaleOne(activation, x, scale, offset, rows, channels, wide, y);
}

Scaled::Scaled(const std::vector<const float*>& scales, const float* offset,
               int64_t channels, Activation activation)
    : channels_(channels),
      beside_(Beside(channels)),
      activation_(activation),
      offset_(Repeated(offset, channels, beside_)) {
  for (const float* scale : scales) {
    scales_.push_back(Repeated(scale, channels, beside_));
  }
}

void Scaled::Run(const std::vector<const float*>& maps, int64_t begin,
                 int64_t end, float* y) const {
  const auto run = [&](int64_t first, int64_t rows, int64_t width) {
    const int64_t from = first * channels_;
    if (maps.size() == 1) {
      ScaleOne(activation_, maps[0] + from, scales_[0].data(), offset_.data(),
               rows, width, width, y + from);
    } else {
      ScaleTwo(activation_, {maps[0] + from, scales_[0].data()},
               {maps[1] + from, scales_[1].data()}, offset_.data(), rows, width,
               y + from);
    }
  };
  const int64_t wide_rows = (end - begin) / beside_;
  run(begin, wide_rows, beside_ * channels_);
  const int64_t first = begin + wide_rows * beside_;
  run(first, end - first, channels_);
}

Through::Through(const float* scale, const float* offset, int64_t channels,
                 Activation activation)
    : channels_(channels),
      beside_(Beside(channels)),
      activation_(activation),
      scale_(Repeated(scale, channels, beside_)),
      offset_(Repeated(offset, channels, beside_)) {}

void Through::Sums(const float* dy, const float* x, const float* mean,
                   int64_t rows, float* sums, float* products) const {
  const int64_t width = beside_ * channels_;
  const int64_t wide_rows = rows / beside_, left = rows % beside_;
  const std::vector<float> means = Repeated(mean, channels_, beside_);
  std::vector<float> s(width, 0.0f), p(width, 0.0f);
  const Affine of = {scale_.data(), offset_.data()};
  AddThrough(activation_, of, dy, x, means.data(), wide_rows, width, s.data(),
             p.data());
  AddThrough(activation_, of, dy + wide_rows * width, x + wide_rows * width,
             mean, left, channels_, s.data(), p.data());
  Fold(s, channels_, sums);
  Fold(p, channels_, products);
}

void Through::Gradient(const float* dy, const float* x, const float* by_map,
                       const float* by_all, int64_t begin, int64_t end,
                       float* dx) const {
  const std::vector<float> b = Repeated(by_map, channels_, beside_);
  const std::vector<float> e = Repeated(by_all, channels_, beside_);
  const Affine of = {scale_.data(), offset_.data()}, by = {b.data(), e.data()};
  const auto run = [&](int64_t first, int64_t rows, int64_t width) {
    const int64_t from = first * channels_;
    GradientThrough(activation_, of, dy + from, x + from, by, rows, width,
                    dx + from);
  };
  const int64_t wide_rows = (end - begin) / beside_;
  run(begin, wide_rows, beside_ * channels_);
  const int64_t first = begin + wide_rows * beside_;
  run(first, end - first, channels_);
}

Biased::Biased(const float* bias, int64_t channels, Activation activation)
    : channels_(channels),
      beside_(Beside(channels)),
      activation_(activation),
      bias_(Repeated(bias, channels, beside_)) {}

void Biased::Gradient(const float* dy, const float* x, int64_t rows, float* dx,
                      float* sums) const {
  const int64_t width = beside_ * channels_;
  const int64_t wide_rows = rows / beside_, left = rows % beside_;
  const int64_t from = wide_rows * width;
  std::vector<float> all(width, 0.0f);
  BiasedGradient(activation_, dy, x, bias_.data(), wide_rows, width, dx,
                 all.data());
  BiasedGradient(activation_, dy + from, x + from, bias_.data(), left,
                 channels_, dx + from, all.data());
  Fold(all, channels_, sums);
}

}  // namespace channels
}  // namespace tf_convpar
