// The largest, or the mean, of each window, channels last.

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

// Writes rows of the feature maps of one image from `begin` to `end`.
void Pool(const windows::Sizes& of, Kind kind, const float* x, int64_t begin,
          int64_t end, float* y);

}  // namespace pooling
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_POOLING_POOL_H_
