// The instruction sets that kernels are compiled for.

#ifndef TF_CONVPAR_CUSTOM_OPS_SIMD_INSTRUCTION_SET_H_
#define TF_CONVPAR_CUSTOM_OPS_SIMD_INSTRUCTION_SET_H_

#include <cstdint>

namespace tf_convpar {
namespace simd {

struct InstructionSet {
  const char* name;
  int64_t lanes;  // floats of a vector
  int64_t rows;   // of a matrix product that registers hold

  constexpr int64_t panel() const { return 2 * lanes; }  // its filters
};

namespace avx512 {
inline constexpr InstructionSet kSet = {"avx512", 16, 14};
}
namespace avx2 {
inline constexpr InstructionSet kSet = {"avx2", 8, 6};
}
namespace base {
inline constexpr InstructionSet kSet = {"base", 4, 6};
}

// Null if none has that name.
const InstructionSet* FindInstructionSet(const char* name);

}  // namespace simd
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_SIMD_INSTRUCTION_SET_H_
