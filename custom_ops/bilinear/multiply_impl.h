// The product of panels, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_MULTIPLY_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_MULTIPLY_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/activation_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

using simd::kLanes;
using simd::Load;
using simd::Store;
using simd::Vector;

constexpr int64_t kPanel = simd::kSet.panel();
constexpr int64_t kRows = simd::kSet.rows;

// The factors of a product and its result. Floats from one row to the next,
// and from one column to the next where they are not side by side.
struct Left {
  const float* data;
  int64_t row, column;
};

// Panels of kPanel columns, each of so many rows.
struct Right {
  const float* data;
  int64_t rows;
};

struct Result {
  float* data;
  int64_t row;
};

// Floats from one row of a factor or of the result to the next, from one column
// of the left one to the next, and of so many parts from one to the next; and
// rows like those of the left one that are needed soon, or null.
struct ProductStrides {
  int64_t a_row, a_column, c_row;
  int64_t parts = 1, a_part = 0;
  const float* next = nullptr;
};

// What sums begin with, if anything: numbers that lie as the result's do, and
// one for each column. And how they end.
struct Ends {
  const float* summand;
  const float* offset = nullptr;
  channels::Activation activation = channels::Activation::kLinear;
};

template <typename F, int R, int V>
TF_CONVPAR_INLINE void Activate(Vector (&sum)[R][V]) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = F::Value(sum[i][v]);
  }
}

// c (+)= a b for R rows and V vectors of one panel, `depth` rows of it in each
// part. All R x V sums stay in registers.
template <int R, int V>
void Block(int64_t depth, const ProductStrides& strides, const float* a,
           const float* b, float* c, const Ends& ends) {
  const int64_t row = strides.a_row, column = strides.a_column;
  const int64_t c_row = strides.c_row;
  const int64_t jump = strides.a_part - depth * column;
  const float* next = strides.next;
  Vector sum[R][V], first[V] = {};
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    if (ends.offset != nullptr) first[v] = Load(ends.offset + v * kLanes);
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const int64_t place = i * c_row + v * kLanes;
      __builtin_prefetch(c + place, 1);
      sum[i][v] = first[v];
      if (ends.summand != nullptr) sum[i][v] += Load(ends.summand + place);
    }
  }
  for (int64_t part = 0; part < strides.parts; ++part) {
    for (int64_t k = 0; k < depth; ++k) {
      Vector panel[V];
      // The panel comes from afar, and so do the next rows, of which each line
      // of 16 floats is asked for once: the processor's own guesses are late.
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        panel[v] = Load(b + v * kLanes);
        __builtin_prefetch(b + 16 * kPanel + v * kLanes);
      }
      if (next != nullptr) {
        __builtin_prefetch(next + (k & 15) * row + (k & ~int64_t{15}));
      }
      b += kPanel;
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const float factor = a[i * row];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[i][v] += factor * panel[v];
      }
      a += column;
    }
    a += jump;
    if (next != nullptr) next += strides.a_part;
  }
  TF_CONVPAR_BY_ACTIVATION(ends.activation, Activate, sum)
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) Store(c + i * c_row + v * kLanes, sum[i][v]);
  }
}

using BlockFunction = void (*)(int64_t, const ProductStrides&, const float*,
                               const float*, float*, const Ends&);

// More rows than registers hold are not compiled.
template <int R, int V>
constexpr BlockFunction BlockIfHeld() {
  if constexpr (R <= kRows) {
    return Block<R, V>;
  } else {
    return nullptr;
  }
}

// For so many rows and V vectors of a panel.
template <int V = 2>
BlockFunction BlockOf(int64_t rows) {
  static constexpr BlockFunction kBlocks[] = {
      BlockIfHeld<1, V>(),  BlockIfHeld<2, V>(),  BlockIfHeld<3, V>(),
      BlockIfHeld<4, V>(),  BlockIfHeld<5, V>(),  BlockIfHeld<6, V>(),
      BlockIfHeld<7, V>(),  BlockIfHeld<8, V>(),  BlockIfHeld<9, V>(),
      BlockIfHeld<10, V>(), BlockIfHeld<11, V>(), BlockIfHeld<12, V>(),
      BlockIfHeld<13, V>(), BlockIfHeld<14, V>(),
  };
  static_assert(kRows <= sizeof(kBlocks) / sizeof(kBlocks[0]));
  return kBlocks[rows - 1];
}

// Rows in groups as equal as can be: a last group of one row would leave most
// of the processor idle.
inline int64_t RowsPerGroup(int64_t rows) {
  const int64_t groups = (rows + kRows - 1) / kRows;
  return (rows + groups - 1) / groups;
}

struct ProductSize {
  int64_t rows, panels, depth;
};

// Rows of a panel that stay in the nearest cache.
constexpr int64_t kPart = 224;

// c (+)= a b. Rows go in bands, and a panel in parts that stay in the nearest
// cache while the rows of a band pass by.
inline void Multiply(ProductSize size, Left a, Right b, Result c, bool add) {
  const int64_t parts = Max(1, (size.depth + kPart - 1) / kPart);
  const int64_t part = (size.depth + parts - 1) / parts;
  const int64_t group = RowsPerGroup(size.rows);
  const int64_t band = 4 * group;
  const ProductStrides strides = {a.row, a.column, c.row};
  for (int64_t first = 0; first < size.rows; first += band) {
    const int64_t last = Min(first + band, size.rows);
    for (int64_t panel = 0; panel < size.panels; ++panel) {
      for (int64_t k = 0; k < size.depth; k += part) {
        for (int64_t r = first; r < last; r += group) {
          float* const own = c.data + r * c.row + panel * kPanel;
          BlockOf(Min(group, last - r))(Min(part, size.depth - k), strides,
                                        a.data + r * a.row + k * a.column,
                                        b.data + (panel * b.rows + k) * kPanel,
                                        own, {add || k > 0 ? own : nullptr});
        }
      }
    }
  }
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_MULTIPLY_IMPL_H_
