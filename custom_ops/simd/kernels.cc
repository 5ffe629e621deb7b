#include "custom_ops/simd/kernels.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "custom_ops/simd/instruction_set.h"

namespace tf_convpar {
namespace simd {

namespace base {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

const InstructionSet* FindInstructionSet(const char* name) {
  for (const InstructionSet* set : {&avx512::kSet, &avx2::kSet, &base::kSet}) {
    if (std::strcmp(name, set->name) == 0) return set;
  }
  return nullptr;
}

namespace {

const Kernels& Find() {
#if defined(__x86_64__)
  const char* const name = std::getenv(kWidest);
  const InstructionSet* const widest =
      name == nullptr ? nullptr : FindInstructionSet(name);
  const int64_t lanes = widest == nullptr ? avx512::kSet.lanes : widest->lanes;
  const bool has_avx2 = __builtin_cpu_supports("avx2") &&
                        __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  if (lanes >= avx512::kSet.lanes && has_avx2 &&
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    return avx512::kKernels;
  }
  if (lanes >= avx2::kSet.lanes && has_avx2) return avx2::kKernels;
#endif
  return base::kKernels;
}

}  // namespace

const Kernels& Best() {
  static const Kernels& best = Find();
  return best;
}

}  // namespace simd
}  // namespace tf_convpar
