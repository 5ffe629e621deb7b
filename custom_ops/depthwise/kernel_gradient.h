// The kernel gradient of a depthwise convolution, channels last.
//
//   dk[a, b, c] = sum over i, j of x[s i + a - top, s j + b - left, c] dy[i, j,
//   c]
//
// Channels are the fastest index of all three, so vectors are of channels, and
// nothing is ever rearranged.

#ifndef TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_KERNEL_GRADIENT_H_
#define TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_KERNEL_GRADIENT_H_

#include <cstdint>

#include "custom_ops/windows/sizes.h"

namespace tf_convpar {
namespace depthwise {

// Adds to `sums`, [window, channels], what the feature maps' rows from `begin`
// to `end` contribute. `x` and `dy` are of one image.
void AddRows(const windows::Sizes& of, const float* x, const float* dy,
             int64_t begin, int64_t end, float* sums);

}  // namespace depthwise
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_KERNEL_GRADIENT_H_
