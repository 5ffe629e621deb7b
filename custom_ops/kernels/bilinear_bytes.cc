// How much memory the bilinear ops take beside arguments and results, for
// whoever plans with it. Plain functions and no ops: a plan asks thousands of
// times. tf_convpar/algorithms/_workspace.py calls them.

#include <cstdint>

#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/kernels/workspace.h"
#include "custom_ops/simd/instruction_set.h"
#include "custom_ops/simd/kernels.h"

namespace tf_convpar {
namespace {

using bilinear::Extent;
using bilinear::ForwardSizes;
using bilinear::GradientSizes;
using simd::InstructionSet;

// That of this process where no name is given; null where none has the name.
const InstructionSet* Find(const char* name) {
  return name == nullptr ? &simd::Best().set : simd::FindInstructionSet(name);
}

}  // namespace

// Both answer -1 where there is no such instruction set.
extern "C" {

__attribute__((visibility("default"))) int64_t
TfConvparForwardBytes(const char* instruction_set, const Extent* extent) {
  const InstructionSet* set = Find(instruction_set);
  if (set == nullptr) return -1;
  const ForwardSizes sizes(*extent, *set, /*remember=*/false);
  return Workspace::BytesFor(sizes.scratch + sizes.spectrum);
}

__attribute__((visibility("default"))) int64_t TfConvparKernelGradientBytes(
    const char* instruction_set, const Extent* extent) {
  const InstructionSet* set = Find(instruction_set);
  if (set == nullptr) return -1;
  return Workspace::BytesFor(GradientSizes(*extent, *set).scratch);
}

}  // extern "C"

}  // namespace tf_convpar
