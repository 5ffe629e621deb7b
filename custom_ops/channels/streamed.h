// A product of a few rows by a matrix that is read once, as it lies.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_STREAMED_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_STREAMED_H_

#include <cstdint>

namespace tf_convpar {
namespace channels {

// Sets `sums`, [rows, columns], to `x` [rows, depth], of which rows are so far
// apart, by `matrix` [depth, columns].
void Streamed(const float* x, int64_t apart, int64_t rows, const float* matrix,
              int64_t depth, int64_t columns, float* sums);

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_STREAMED_H_
