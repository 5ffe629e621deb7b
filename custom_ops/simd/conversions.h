// Conversion of runs of numbers to floats and back.

#ifndef TF_CONVPAR_CUSTOM_OPS_SIMD_CONVERSIONS_H_
#define TF_CONVPAR_CUSTOM_OPS_SIMD_CONVERSIONS_H_

#include <cstdint>

namespace tf_convpar {
namespace simd {

// Writes to `dst` the `n` numbers at `src`, converted.
using ConvertFn = void (*)(const void* src, void* dst, int64_t n);

struct Conversion {
  ConvertFn to_float, from_float;
};

// One instruction set's code.
struct Conversions {
  Conversion of_half, of_bfloat16, of_double;
};

}  // namespace simd
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_SIMD_CONVERSIONS_H_
