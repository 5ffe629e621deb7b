#include "custom_ops/bilinear/passes.h"

#include <cstdlib>
#include <cstring>

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

namespace {

const Passes* Find() {
  const char* widest = std::getenv(kWidest);
  bool allowed = widest == nullptr || *widest == 0;
  const auto use = [&](const Passes& passes, bool has) {
    allowed = allowed || std::strcmp(widest, passes.set.name) == 0;
    return allowed && has;
  };
#if defined(__x86_64__)
  if (use(avx512::kPasses, __builtin_cpu_supports("avx512f") &&
                               __builtin_cpu_supports("avx512vl") &&
                               __builtin_cpu_supports("avx512dq") &&
                               __builtin_cpu_supports("avx512bw"))) {
    return &avx512::kPasses;
  }
  if (use(avx2::kPasses,
          __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) {
    return &avx2::kPasses;
  }
#endif
  return use(base::kPasses, true) ? &base::kPasses : nullptr;
}

}  // namespace

const Passes* BestPasses() {
  static const Passes* const best = Find();
  return best;
}

}  // namespace bilinear
}  // namespace tf_convpar
