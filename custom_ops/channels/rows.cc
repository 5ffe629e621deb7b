#include "custom_ops/channels/rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/kernels.h"
#include "custom_ops/simd/kernels.h"

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

const Kernels& Loops() { return simd::Best().channels; }

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
  Loops().add_rows(x, wide_rows, width, sums.data());
  Loops().add_rows(rest, left, channels, sums.data());
  Fold(sums, channels, mean);
  for (int64_t c = 0; c < channels; ++c) mean[c] /= rows;
  const std::vector<float> means = Repeated(mean, channels, beside);
  std::fill(sums.begin(), sums.end(), 0.0f);
  Loops().add_squares(x, means.data(), wide_rows, width, sums.data());
  Loops().add_squares(rest, mean, left, channels, sums.data());
  Fold(sums, channels, squares);
}

void Sums(const float* y, const float* x, const float* mean, int64_t rows,
          int64_t channels, float* sums, float* products) {
  const int64_t beside = Beside(channels), width = beside * channels;
  const int64_t wide_rows = rows / beside, left = rows % beside;
  const std::vector<float> means = Repeated(mean, channels, beside);
  std::vector<float> s(width, 0.0f), p(width, 0.0f);
  Loops().add_products(y, x, means.data(), wide_rows, width, s.data(),
                       p.data());
  Loops().add_products(y + wide_rows * width, x + wide_rows * width, mean, left,
                       channels, s.data(), p.data());
  Fold(s, channels, sums);
  Fold(p, channels, products);
}

void ScaleInto(Activation activation, const float* x, const float* scale,
               const float* offset, int64_t rows, int64_t channels,
               int64_t wide, float* y) {
  Loops().scale_one(activation, x, scale, offset, rows, channels, wide, y);
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
      Loops().scale_one(activation_, maps[0] + from, scales_[0].data(),
                        offset_.data(), rows, width, width, y + from);
    } else {
      Loops().scale_two(activation_, {maps[0] + from, scales_[0].data()},
                        {maps[1] + from, scales_[1].data()}, offset_.data(),
                        rows, width, y + from);
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
  Loops().add_through(activation_, of, dy, x, means.data(), wide_rows, width,
                      s.data(), p.data());
  Loops().add_through(activation_, of, dy + wide_rows * width,
                      x + wide_rows * width, mean, left, channels_, s.data(),
                      p.data());
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
    Loops().gradient_through(activation_, of, dy + from, x + from, by, rows,
                             width, dx + from);
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
  Loops().biased_gradient(activation_, dy, x, bias_.data(), wide_rows, width,
                          dx, all.data());
  Loops().biased_gradient(activation_, dy + from, x + from, bias_.data(), left,
                          channels_, dx + from, all.data());
  Fold(all, channels_, sums);
}

}  // namespace channels
}  // namespace tf_convpar
