// Whether there is an instruction set for the ops that have one.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_INSTRUCTION_SET_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_INSTRUCTION_SET_H_

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/bilinear/passes.h"

namespace tf_convpar {

inline absl::Status CheckInstructionSet() {
  if (bilinear::BestPasses() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Expected the environment variable ", bilinear::kWidest,
                   " to be avx512, avx2 or base, or not to be set. Received: ",
                   std::getenv(bilinear::kWidest)));
}

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_INSTRUCTION_SET_H_
