// A product of matrices by itself, for one instruction set; see
// vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PRODUCT_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PRODUCT_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

void Pack(const float* b, int64_t depth, int64_t columns, const float* factors,
          float* panels) {
  for (int64_t f = 0; f < columns; f += kPanel) {
    const int64_t count = Min(kPanel, columns - f);
    for (int64_t k = 0; k < depth; ++k, panels += kPanel) {
      const float* row = b + k * columns + f;
      for (int64_t i = 0; i < count; ++i) {
        panels[i] = factors == nullptr ? row[i] : row[i] * factors[f + i];
      }
      for (int64_t i = count; i < kPanel; ++i) panels[i] = 0;
    }
  }
}

void CopyRows(int64_t rows, int64_t columns, const float* from,
              int64_t from_row, float* to, int64_t to_row) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      to[i * to_row + j] = from[i * from_row + j];
    }
  }
}

// Rows next to each other of one line.
struct Group {
  const float* a;
  int64_t row, rows;  // of the result
};

// Groups as equal as can be of some rows; returns their number.
int64_t Groups(const Lines& of, int64_t begin, int64_t end, Group* groups) {
  int64_t count = 0;
  while (begin < end) {
    const int64_t line = begin / of.rows, first = begin % of.rows;
    const int64_t last = Min(of.rows, first + end - begin);
    const int64_t each = RowsPerGroup(last - first);
    for (int64_t r = first; r < last; r += each) {
      groups[count++] = {of.data + line * of.line + r * of.row,
                         begin + r - first, Min(each, last - r)};
    }
    begin += last - first;
  }
  return count;
}

// The rows after those of a group; null if there are none, or elsewhere.
const float* Following(const Lines& of, const Group* group, const Group* last) {
  if (group < last) return group[1].a;
  const bool ends = (group->row + group->rows) % of.rows == 0;
  return ends ? nullptr : group->a + group->rows * of.row;
}

// One panel, `columns` of it from `column` on, times the rows of all groups.
void TimesPanel(const ProductPart& part, const Lines& of, const Group* groups,
                int64_t count, const float* panel, int64_t column,
                int64_t columns, float* c) {
  // Of the last panel only some columns are those of the result.
  float sums[kRows * kPanel], summands[kRows * kPanel];
  const bool half = columns <= kLanes;
  const bool whole = columns == (half ? kLanes : kPanel);
  const Ending& ending = part.ending;
  // Several parts of a row at a time, or a part in several pieces. One group
  // takes the panel as a whole: nobody would find it in the nearest cache.
  const int64_t most = count > 1 ? kPart : of.parts * of.depth;
  const int64_t high = Max(1, Min(of.parts, most / of.depth));
  const int64_t pieces = (of.depth + most - 1) / most;
  const int64_t deep = (of.depth + pieces - 1) / pieces;
  // Whoever has the first panel is the first to need the rows.
  const bool fetches = column == part.first_panel * kPanel;
  const Group* const last_group = groups + count - 1;
  for (int64_t p = 0; p < of.parts; p += high) {
    for (int64_t k = 0; k < of.depth; k += deep) {
      ProductStrides strides = {of.row, 1, whole ? part.columns : kPanel,
                                Min(high, of.parts - p), of.part};
      const bool first = p == 0 && k == 0;
      const bool last = p + high >= of.parts && k + deep >= of.depth;
      for (const Group* group = groups; group < groups + count; ++group) {
        const int64_t place = group->row * part.columns + column;
        Ends ends = {first ? ending.summand : c};
        if (ends.summand != nullptr) ends.summand += place;
        if (first && ending.offset != nullptr) {
          ends.offset = ending.offset + column;
        }
        if (last) ends.activation = ending.activation;
        if (!whole && ends.summand != nullptr) {
          CopyRows(group->rows, columns, ends.summand, part.columns, summands,
                   kPanel);
          ends.summand = summands;
        }
        const float* next =
            fetches ? Following(of, group, last_group) : nullptr;
        if (next != nullptr) next += p * of.part + k;
        strides.next = next;
        const auto block =
            half ? BlockOf<1>(group->rows) : BlockOf<2>(group->rows);
        block(Min(deep, of.depth - k), strides, group->a + p * of.part + k,
              panel + (p * of.depth + k) * kPanel, whole ? c + place : sums,
              ends);
        if (!whole) {
          CopyRows(group->rows, columns, sums, kPanel, c + place, part.columns);
        }
      }
    }
  }
}

void Product(const ProductPart& part, const Lines& of, const float* panels,
             float* c) {
  Group groups[kMostRows];
  const int64_t count = Groups(of, part.begin, part.end, groups);
  for (int64_t p = part.first_panel; p < part.first_panel + part.panels; ++p) {
    TimesPanel(part, of, groups, count,
               panels + p * of.parts * of.depth * kPanel, p * kPanel,
               Min(kPanel, part.columns - p * kPanel), c);
  }
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PRODUCT_IMPL_H_
