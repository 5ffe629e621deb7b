// A product of matrices by itself, for one instruction set; see
// vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PRODUCT_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PRODUCT_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/vectors_impl.h"

namespace tf_convpar {
namespace bilinear {
namespace TF_CONVPAR_ISA {
namespace {

void Pack(const float* b, int64_t depth, int64_t columns, float* panels) {
  for (int64_t f = 0; f < columns; f += kPanel) {
    const int64_t count = Min(kPanel, columns - f);
    for (int64_t k = 0; k < depth; ++k, panels += kPanel) {
      const float* row = b + k * columns + f;
      for (int64_t i = 0; i < count; ++i) panels[i] = row[i];
      for (int64_t i = count; i < kPanel; ++i) panels[i] = 0;
    }
  }
}

void Product(const ProductPart& part, const float* a, const float* panels,
             float* c) {
  const int64_t depth = part.depth, columns = part.columns;
  const int64_t whole = columns / kPanel;
  const int64_t end = part.first_panel + part.panels;
  const int64_t count = Min(end, whole) - part.first_panel;
  const Left left = {a, depth, 1};
  panels += part.first_panel * depth * kPanel;
  c += part.first_panel * kPanel;
  if (count > 0) {
    Multiply({part.rows, count, depth}, left, {panels, depth}, {c, columns},
             false);
  }
  if (end <= whole) return;
  // Of the last panel only some columns are those of the result.
  panels += count * depth * kPanel;
  c += count * kPanel;
  float sums[kRows * kPanel];
  for (int64_t r = 0; r < part.rows; r += kRows) {
    const int64_t rows = Min(kRows, part.rows - r);
    Multiply({rows, 1, depth}, {a + r * depth, depth, 1}, {panels, depth},
             {sums, kPanel}, false);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns % kPanel; ++j) {
        c[(r + i) * columns + j] = sums[i * kPanel + j];
      }
    }
  }
}

}  // namespace
}  // namespace TF_CONVPAR_ISA
}  // namespace bilinear
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PRODUCT_IMPL_H_
