// All that is compiled for several instruction sets, and the choice of one.
//
// avx512.cc, avx2.cc and base.cc compile the `_impl.h` headers, each for one
// set.

#ifndef TF_CONVPAR_CUSTOM_OPS_SIMD_KERNELS_H_
#define TF_CONVPAR_CUSTOM_OPS_SIMD_KERNELS_H_

#include <cstdint>

#include "custom_ops/bilinear/passes.h"
#include "custom_ops/blocks/kernels.h"
#include "custom_ops/channels/kernels.h"
#include "custom_ops/depthwise/depthwise.h"
#include "custom_ops/pooling/pool.h"
#include "custom_ops/simd/instruction_set.h"

namespace tf_convpar {
namespace simd {

// Writes to `dst` the `n` numbers at `src`, converted.
using ConvertFn = void (*)(const void* src, void* dst, int64_t n);

struct Conversion {
  ConvertFn to_float, from_float;
};

struct Conversions {
  Conversion of_half, of_bfloat16, of_double;
};

struct Kernels {
  InstructionSet set;
  bilinear::Passes bilinear;
  blocks::Kernels blocks;
  channels::Kernels channels;
  depthwise::Kernels depthwise;
  pooling::Kernels pooling;
  Conversions conversions;
};

// The environment variable that names the widest instruction set to use:
// "avx512", "avx2" or "base". For comparisons, and for processors that slow
// down where vectors are wide.
constexpr char kWidest[] = "TF_CONVPAR_WIDEST_ISA";

// Those of the widest instruction set that this processor has and `kWidest`
// allows. If `kWidest` has no set's name, all are allowed.
const Kernels& Best();

}  // namespace simd
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_SIMD_KERNELS_H_
