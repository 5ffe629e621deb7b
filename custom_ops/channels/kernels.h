// The loops over rows of channels. `y` and `dx` may be maps that are read: each
// number is read before it is written.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_KERNELS_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_KERNELS_H_

#include <cstdint>

#include "custom_ops/channels/activation.h"

namespace tf_convpar {
namespace channels {

// Maps, and their factor for each channel.
struct Term {
  const float* maps;
  const float* scale;
};

// A vector for each of a normalization's numbers by channel.
struct Affine {
  const float* scale;
  const float* offset;
};

// One instruction set's code. Rows are `width` floats; sums are added to.
struct Kernels {
  void (*add_rows)(const float* x, int64_t rows, int64_t width, float* sums);
  void (*add_squares)(const float* x, const float* mean, int64_t rows,
                      int64_t width, float* sums);
  void (*add_products)(const float* y, const float* x, const float* mean,
                       int64_t rows, int64_t width, float* sums,
                       float* products);
  // Rows of `y` are `wide`.
  void (*scale_one)(Activation activation, const float* a, const float* s,
                    const float* offset, int64_t rows, int64_t width,
                    int64_t wide, float* y);
  void (*scale_two)(Activation activation, Term first, Term second,
                    const float* offset, int64_t rows, int64_t width, float* y);
  void (*add_through)(Activation activation, Affine of, const float* dy,
                      const float* x, const float* mean, int64_t rows,
                      int64_t width, float* sums, float* products);
  void (*gradient_through)(Activation activation, Affine of, const float* dy,
                           const float* x, Affine by, int64_t rows,
                           int64_t width, float* dx);
  void (*biased_gradient)(Activation activation, const float* dy,
                          const float* x, const float* bias, int64_t rows,
                          int64_t width, float* dx, float* sums);

  // Each row less its mean, by the root of its variance and epsilon.
  void (*normalize)(const float* x, int64_t rows, int64_t width, float epsilon,
                    float* y);
  // The same, each channel then times a factor and plus a summand.
  void (*normalize_by)(const float* x, const float* gamma, const float* beta,
                       int64_t rows, int64_t width, float epsilon, float* y);
  // Gradients of that by `x`; and for each channel the sums of `dy` and of `dy`
  // times normalized rows, which are the gradients by beta and gamma.
  void (*normalize_gradient)(const float* dy, const float* x,
                             const float* gamma, int64_t rows, int64_t width,
                             float epsilon, float* dx, float* sums,
                             float* products);

  // Sets `sums`, [rows, columns], to `x` [rows, depth], of which rows are so
  // far apart, by `matrix` [depth, columns], which is read once, as it lies.
  void (*streamed)(const float* x, int64_t apart, int64_t rows,
                   const float* matrix, int64_t depth, int64_t columns,
                   float* sums);
};

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_KERNELS_H_
