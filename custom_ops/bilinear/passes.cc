#include "custom_ops/bilinear/passes.h"

namespace tf_convpar {
namespace bilinear {

namespace base {
extern const Passes kPasses;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Passes kPasses;
}
namespace avx512 {
extern const Passes kPasses;
}
#endif

const Passes& BestPasses() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    return avx512::kPasses;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return avx2::kPasses;
  }
#endif
  return base::kPasses;
}

}  // namespace bilinear
}  // namespace tf_convpar
