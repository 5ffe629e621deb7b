// The passes of a bilinear convolution, for the processor at hand.
//
// Vectors run along channels, so every number of a program is applied to 4, 8
// or 16 channels at once, and every point of the spectrum is one matrix
// product between tiles and filters.
//
// No `_impl.h` may use the standard library's templates: the same code is
// compiled for several instruction sets, and a linker would merge what they
// share.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_H_

#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"

namespace tf_convpar {
namespace bilinear {

// Some rows and panels of a product c = a b, where a is [rows, depth] and c
// [rows, columns].
struct ProductPart {
  int64_t rows, depth, columns;
  int64_t first_panel, panels;
};

// One instruction set's code. Sizes are those of the pass for as many threads
// as the pool has, and `scratch` is as many floats as they say.
struct Passes {
  InstructionSet set;

  // G k, as a whole: [points, panels, channels, panel]; for the adjoint pass
  // channels and filters change places.
  void (*spectrum)(const Pass&, const ForwardSizes&, const float* kernel,
                   float* spectrum, float* scratch, Pool&);
  // From that spectrum.
  void (*forward)(const Pass&, const ForwardSizes&, const ForwardTensors&,
                  float* scratch, Pool&);
  // From the kernel, of whose spectrum it makes a part at a time.
  void (*forward_by_parts)(const Pass&, const ForwardSizes&,
                           const ForwardTensors&, float* scratch, Pool&);
  void (*gradient)(const Pass&, const GradientSizes&, const GradientTensors&,
                   float* scratch, Pool&);
  // b, [depth, columns], to [panels, depth, panel].
  void (*pack)(const float* b, int64_t depth, int64_t columns, float* panels);
  // From those panels; `a` and `c` are where the part's rows begin.
  void (*product)(const ProductPart&, const float* a, const float* panels,
                  float* c);
};

// The environment variable that names the widest instruction set to use:
// "avx512", "avx2" or "base". For comparisons, and for processors that slow
// down where vectors are wide.
constexpr char kWidest[] = "TF_CONVPAR_WIDEST_ISA";

// Those of the widest instruction set that this processor has and `kWidest`
// allows; null where that names none.
const Passes* BestPasses();

}  // namespace bilinear
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_H_
