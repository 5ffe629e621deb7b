// Arithmetic on feature maps with channels last, as rows of `channels` floats:
// what normalization takes of them and does to them, each in one pass.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_ROWS_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_ROWS_H_

#include <cstdint>
#include <vector>

#include "custom_ops/channels/activation.h"

namespace tf_convpar {
namespace channels {

// How many rows are summed up in floats, before sums go on in doubles: few
// enough to stay in a cache for a second pass, and for floats to be exact
// enough.
int64_t RowsPerBlock(int64_t channels);

// For each channel the mean of some rows, and the sum of squares of what is
// left of them without it.
void Moments(const float* x, int64_t rows, int64_t channels, float* mean,
             float* squares);

// For each channel the sums of `y` and of `y (x - mean)`.
void Sums(const float* y, const float* x, const float* mean, int64_t rows,
          int64_t channels, float* sums, float* products);

// Each channel of some rows times a factor and plus an offset, and an
// activation of it, as a part of rows that are `wide`. `y` may be `x` where
// those are as wide.
void ScaleInto(Activation activation, const float* x, const float* scale,
               const float* offset, int64_t rows, int64_t channels,
               int64_t wide, float* y);

// The sum of one or two maps, each channel times a factor, and of an offset
// for each channel; and an activation of it. `y` may be one of the maps.
class Scaled {
 public:
  Scaled(const std::vector<const float*>& scales, const float* offset,
         int64_t channels, Activation activation);

  // Rows from `begin` to `end`.
  void Run(const std::vector<const float*>& maps, int64_t begin, int64_t end,
           float* y) const;

 private:
  const int64_t channels_;
  const int64_t beside_;  // rows that are taken for one
  const Activation activation_;
  std::vector<std::vector<float>> scales_;
  std::vector<float> offset_;
};

// Gradients through an activation f of maps x, of which each channel is scaled
// and has an offset: g = dy f'(scale x + offset).
class Through {
 public:
  Through(const float* scale, const float* offset, int64_t channels,
          Activation activation);

  // For each channel the sums of g and of g (x - mean).
  void Sums(const float* dy, const float* x, const float* mean, int64_t rows,
            float* sums, float* products) const;

  // scale g + by_map x + by_all, for rows from `begin` to `end`. `dx` may be
  // `dy` or `x`.
  void Gradient(const float* dy, const float* x, const float* by_map,
                const float* by_all, int64_t begin, int64_t end,
                float* dx) const;

 private:
  const int64_t channels_;
  const int64_t beside_;
  const Activation activation_;
  std::vector<float> scale_, offset_;
};

// Gradients through an activation f of maps x, to which a bias is added:
// g = dy f'(x + bias).
class Biased {
 public:
  Biased(const float* bias, int64_t channels, Activation activation);

  // g, and for each channel the sum of it. `dx` may be `dy` or `x`.
  void Gradient(const float* dy, const float* x, int64_t rows, float* dx,
                float* sums) const;

 private:
  const int64_t channels_;
  const int64_t beside_;
  const Activation activation_;
  const std::vector<float> bias_;
};

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_ROWS_H_
