// The gradient of the largest of each window, channels last.
//
// What a window's maximum got goes to its first pixel, row by row, that is as
// large. So TensorFlow's own op has it.

#ifndef TF_CONVPAR_CUSTOM_OPS_POOLING_MAX_GRADIENT_H_
#define TF_CONVPAR_CUSTOM_OPS_POOLING_MAX_GRADIENT_H_

#include "custom_ops/windows/sizes.h"

namespace tf_convpar {
namespace pooling {

// Writes the gradient `dx` by one image `x` with maxima `y` and gradients `dy`.
void MaxGradient(const windows::Sizes& of, const float* x, const float* y,
                 const float* dy, float* dx);

}  // namespace pooling
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_POOLING_MAX_GRADIENT_H_
