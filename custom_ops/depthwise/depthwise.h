// A depthwise convolution, channels last, and its kernel gradient.
//
//   y[i, j, c] = f(bias[c] + sum over a, b of
//                  x[s i + a - top, s j + b - left, c] k[a, b, c])
//   dk[a, b, c] = sum over i, j of
//                 x[s i + a - top, s j + b - left, c] dy[i, j, c]
//
// Channels are the fastest index of all, so vectors are of channels, and
// nothing is ever rearranged.

#ifndef TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_DEPTHWISE_H_
#define TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_DEPTHWISE_H_

#include <cstdint>

#include "custom_ops/channels/activation.h"
#include "custom_ops/windows/sizes.h"

namespace tf_convpar {
namespace depthwise {

// One instruction set's code.
struct Kernels {
  // Makes the feature maps' rows from `begin` to `end` of one image.
  void (*forward)(const windows::Sizes& of, channels::Activation activation,
                  const float* x, const float* kernel, const float* bias,
                  int64_t begin, int64_t end, float* y);
  // Adds to `sums`, [window, channels], what the feature maps' rows from
  // `begin` to `end` contribute. `x` and `dy` are of one image.
  void (*kernel_gradient)(const windows::Sizes& of, const float* x,
                          const float* dy, int64_t begin, int64_t end,
                          float* sums);
};

}  // namespace depthwise
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_DEPTHWISE_H_
