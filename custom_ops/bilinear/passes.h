// The passes of a bilinear convolution.
//
// Vectors run along channels, so every number of a program is applied to 4, 8
// or 16 channels at once, and every point of the spectrum is one matrix
// product between tiles and filters.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_H_

#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation.h"

namespace tf_convpar {
namespace bilinear {

// What is added to a product, a number for each column of whole panels and one
// for each of the result, where they are not null; and the activation of that.
struct Ending {
  const float *offset, *summand;
  channels::Activation activation;
};

// The left factor of a product: rows that lie in lines, as the windows of an
// image do whose pixels are next to each other. A row consists of parts, which
// for windows are their own rows.
struct Lines {
  const float* data;
  int64_t rows, line;   // of a line, and floats from one to the next
  int64_t row;          // floats from one row to the next
  int64_t parts, part;  // of a row, and floats from one to the next
  int64_t depth;        // floats of a part
};

// Some rows and panels of a product, and what becomes of its sums.
struct ProductPart {
  int64_t begin, end;  // rows, less than kMostRows
  int64_t first_panel, panels;
  int64_t columns;
  Ending ending;
};
constexpr int64_t kMostRows = 112;

// One instruction set's code. Sizes are those of the pass for as many threads
// as the pool has, and `scratch` is as many floats as they say.
struct Passes {
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
  // b, [depth, columns], to [panels, depth, panel], each column times its
  // factor; a null `factors` stands for 1.
  void (*pack)(const float* b, int64_t depth, int64_t columns,
               const float* factors, float* panels);
  // Those rows of the lines times those panels, to rows of `c`.
  void (*product)(const ProductPart&, const Lines&, const float* panels,
                  float* c);
};

}  // namespace bilinear
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASSES_H_
