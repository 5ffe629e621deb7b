// A depthwise convolution, channels last, with its bias and an activation.
//
//   y[i, j, c] = f(bias[c] + sum over a, b of
//                  x[s i + a - top, s j + b - left, c] k[a, b, c])

#ifndef TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_FORWARD_H_
#define TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_FORWARD_H_

#include <cstdint>

#include "custom_ops/channels/activation.h"
#include "custom_ops/windows/sizes.h"

namespace tf_convpar {
namespace depthwise {

// Makes the feature maps' rows from `begin` to `end` of one image.
void MakeRows(const windows::Sizes& of, channels::Activation activation,
              const float* x, const float* kernel, const float* bias,
              int64_t begin, int64_t end, float* y);

}  // namespace depthwise
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_FORWARD_H_
