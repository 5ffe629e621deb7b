// The passes of passes.h for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_IMPL_H_

#include "custom_ops/bilinear/forward_impl.h"
#include "custom_ops/bilinear/gradient_impl.h"
#include "custom_ops/bilinear/kernels_impl.h"
#include "custom_ops/bilinear/parts_impl.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/product_impl.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/vectors_impl.h"

namespace tf_convpar {
namespace bilinear {
namespace TF_CONVPAR_ISA {

extern const Passes kPasses = {kSet,     Spectrum, Forward, ForwardByParts,
                               Gradient, Pack,     Product};

}  // namespace TF_CONVPAR_ISA
}  // namespace bilinear
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_IMPL_H_
