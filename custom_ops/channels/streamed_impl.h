// A product of a few rows by a matrix that is read once, as it lies, for one
// instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_STREAMED_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_STREAMED_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace channels {
namespace {

// Lines of the matrix that are added at once: a sum is read and written for
// each so many.
constexpr int64_t kLines = 4;

void Streamed(const float* x, int64_t apart, int64_t rows, const float* matrix,
              int64_t depth, int64_t columns, float* __restrict sums) {
  std::fill_n(sums, rows * columns, 0.0f);
  int64_t k = 0;
  for (; k + kLines <= depth; k += kLines) {
    const float* __restrict a = matrix + k * columns;
    const float* __restrict b = a + columns, * __restrict c = b + columns, * __restrict d = c + columns;
    for (int64_t r = 0; r < rows; ++r) {
      const float* factors = x + r * apart + k;
      float* __restrict sum = sums + r * columns;
      for (int64_t i = 0; i < columns; ++i) {
        sum[i] += (factors[0] * a[i] + factors[1] * b[i]) +
                  (factors[2] * c[i] + factors[3] * d[i]);
      }
    }
  }
  for (; k < depth; ++k) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < columns; ++i) {
        sums[r * columns + i] += x[r * apart + k] * matrix[k * columns + i];
      }
    }
  }
}

}  // namespace
}  // namespace channels
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_STREAMED_IMPL_H_
