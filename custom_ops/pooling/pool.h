// Pooling of the windows of images, channels last.

#ifndef TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_H_
#define TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_H_

#include <cstdint>

#include "custom_ops/windows/sizes.h"

namespace tf_convpar {
namespace pooling {

enum class Kind {
  kLargest,
  // What is around an image counts as 0, and not as nothing.
  kLargestWithZeros,
  // Of the pixels that lie within the image.
  kMean,
};

// One instruction set's code.
struct Kernels {
  // Writes rows of the feature maps of one image from `begin` to `end`: the
  // largest, or the mean, of each window.
  void (*pool)(const windows::Sizes& of, Kind kind, const float* x,
               int64_t begin, int64_t end, float* y);
  // Writes the gradient `dx` by one image `x` with maxima `y` and gradients
  // `dy`. What a window's maximum got goes to its first pixel, row by row, that
  // is as large. So TensorFlow's own op has it.
  void (*max_gradient)(const windows::Sizes& of, const float* x, const float* y,
                       const float* dy, float* dx);
};

}  // namespace pooling
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_H_
