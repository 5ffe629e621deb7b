// Whether there is an instruction set for the ops that check it.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_INSTRUCTION_SET_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_INSTRUCTION_SET_H_

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/simd/instruction_set.h"
#include "custom_ops/simd/kernels.h"

namespace tf_convpar {

inline absl::Status CheckInstructionSet() {
  const char* const name = std::getenv(simd::kWidest);
  if (name == nullptr || *name == 0 || simd::FindInstructionSet(name)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Expected the environment variable ", simd::kWidest,
      " to be avx512, avx2 or base, or not to be set. Received: ", name));
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_INSTRUCTION_SET_H_
