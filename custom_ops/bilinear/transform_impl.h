// A program applied to one tile of some vectors of channels, for one
// instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_TRANSFORM_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_TRANSFORM_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

// Where the values [outer, middle, inner] of a stage lie: floats from one to
// the next on each axis. Vectors of one value are side by side.
template <typename Float>
struct View {
  Float* data;
  int64_t outer, middle, inner;
};

using Source = View<const float>;
using Target = View<float>;

// Values `unit` floats apart, in order.
inline Source PackedSource(const Stage& stage, const float* data,
                           int64_t unit) {
  return {data, stage.cols * stage.inner * unit, stage.inner * unit, unit};
}

inline Target PackedTarget(const Stage& stage, float* data, int64_t unit) {
  return {data, stage.rows * stage.inner * unit, stage.inner * unit, unit};
}

// One stage on COLUMNS columns. `plus` is added to each result, of which RELU
// then leaves nothing below 0. Floats from one
// column to the next, and from one value of a column to the next, are numbers
// and no struct: through memory a small stage takes up to a fifth longer.
template <int COLUMNS, bool RELU>
inline void Columns(const Stage& stage, const float* from, int64_t from_column,
                    int64_t from_middle, float* to, int64_t to_column,
                    int64_t to_middle, Vector plus) {
  const int* index = stage.index;
  const float* value = stage.value;
  for (int row = 0; row < stage.rows; ++row) {
    Vector sum[COLUMNS];
#pragma GCC unroll 12
    for (int c = 0; c < COLUMNS; ++c) sum[c] = plus;
    for (int n = stage.begin[row + 1] - stage.begin[row]; n > 0; --n) {
      const float factor = *value++;
      const float* source = from + *index++ * from_middle;
#pragma GCC unroll 12
      for (int c = 0; c < COLUMNS; ++c) {
        sum[c] += factor * Load(source + c * from_column);
      }
    }
    float* target = to + row * to_middle;
#pragma GCC unroll 12
    for (int c = 0; c < COLUMNS; ++c) {
      Store(target + c * to_column,
            RELU ? channels::Relu::Value(sum[c]) : sum[c]);
    }
  }
}

inline void AnyColumns(int64_t count, const Stage& stage, const float* from,
                       int64_t from_column, int64_t from_middle, float* to,
                       int64_t to_column, int64_t to_middle, Vector plus,
                       bool relu) {
  constexpr int64_t kMost = 12;  // sums that fit in registers
  int64_t each = count;
  if (count > kMost) {  // A division would take as long as a small stage.
    const int64_t groups = (count + kMost - 1) / kMost;
    each = (count + groups - 1) / groups;
  }
  while (count > 0) {
    const int64_t now = Min(each, count);
#define TF_CONVPAR_CASE(n)                                                    \
  case n:                                                                     \
    if (relu) {                                                               \
      Columns<n, true>(stage, from, from_column, from_middle, to, to_column,  \
                       to_middle, plus);                                      \
    } else {                                                                  \
      Columns<n, false>(stage, from, from_column, from_middle, to, to_column, \
                        to_middle, plus);                                     \
    }                                                                         \
    break;
    switch (now) {
      TF_CONVPAR_CASE(1)
      TF_CONVPAR_CASE(2)
      TF_CONVPAR_CASE(3)
      TF_CONVPAR_CASE(4)
      TF_CONVPAR_CASE(5)
      TF_CONVPAR_CASE(6)
      TF_CONVPAR_CASE(7)
      TF_CONVPAR_CASE(8)
      TF_CONVPAR_CASE(9)
      TF_CONVPAR_CASE(10)
      TF_CONVPAR_CASE(11)
      TF_CONVPAR_CASE(12)
    }
#undef TF_CONVPAR_CASE
    count -= now;
    from += now * from_column;
    to += now * to_column;
  }
}

inline void Apply(const Stage& stage, Source from, Target to, Vector plus,
                  bool relu) {
  // Columns side by side share each factor: run along the longer side.
  if (stage.inner >= stage.outer) {
    for (int o = 0; o < stage.outer; ++o) {
      AnyColumns(stage.inner, stage, from.data + o * from.outer, from.inner,
                 from.middle, to.data + o * to.outer, to.inner, to.middle, plus,
                 relu);
    }
  } else {
    for (int i = 0; i < stage.inner; ++i) {
      AnyColumns(stage.outer, stage, from.data + i * from.inner, from.outer,
                 from.middle, to.data + i * to.inner, to.outer, to.middle, plus,
                 relu);
    }
  }
}

inline int64_t VectorsOf(const Program& program) {
  return VectorsTogether(program.largest);
}

inline int64_t BufferOf(const Program& program) {
  return BufferFloats(program.largest, kLanes);
}

inline float* EdgeOf(const Program& program, float* scratch) {
  return scratch + 2 * BufferOf(program);
}

inline const Stage& First(const Program& program) { return program.stages[0]; }

inline const Stage& Last(const Program& program) {
  return program.stages[program.num_stages - 1];
}

// `vectors` of each value at once; `plus` holds what is added to them. With
// `relu` nothing below 0 is left.
inline void Run(const Program& program, Source from, Target to, int64_t vectors,
                float* scratch, const Vector* plus = nullptr,
                bool relu = false) {
  const int64_t unit = vectors * kLanes;
  float* spare = scratch + BufferOf(program);
  for (int s = 0; s < program.num_stages; ++s) {
    const Stage& stage = program.stages[s];
    const bool last = s + 1 == program.num_stages;
    const Target target = last ? to : PackedTarget(stage, scratch, unit);
    if (stage.outer == 1 && stage.inner == 1 && !(last && plus)) {
      AnyColumns(vectors, stage, from.data, kLanes, from.middle, target.data,
                 kLanes, target.middle, Vector{}, last && relu);
    } else {
      for (int64_t v = 0; v < vectors; ++v) {
        Source own_from = from;
        Target own_target = target;
        own_from.data += v * kLanes;
        own_target.data += v * kLanes;
        Apply(stage, own_from, own_target, last && plus ? plus[v] : Vector{},
              last && relu);
      }
    }
    if (last) return;
    from = PackedSource(program.stages[s + 1], scratch, unit);
    float* swap = scratch;
    scratch = spare;
    spare = swap;
  }
}

// One tile's place in an image of `size`, from `first`, on each axis.
struct Window {
  int64_t first[kAxes], count[kAxes], size[kAxes];

  int64_t pixel(int64_t a, int64_t b, int64_t c) const {
    return (a * size[1] + b) * size[2] + c;
  }

  // Whether a stage can read or write it where it is.
  bool InPlace() const {
    bool inside = count[0] == 1;
    for (int axis = 0; axis < kAxes; ++axis) {
      inside =
          inside && first[axis] >= 0 && first[axis] + count[axis] <= size[axis];
    }
    return inside;
  }
};

// `count` floats of `vectors` vectors.
inline void CopyIn(const float* from, int64_t count, int64_t vectors,
                   float* to) {
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t lanes = Max(0, Min(kLanes, count - v * kLanes));
    const float* source = from + v * kLanes;
    Store(to + v * kLanes,
          lanes == kLanes ? Load(source) : Load(source, lanes));
  }
}

// Some channels of an image: `count` of them, in so many vectors, out of all
// of each pixel.
template <typename Float>
struct Slice {
  Float* data;  // the first of them in the first pixel
  int64_t all;
  int64_t count, vectors;

  bool whole() const { return count == vectors * kLanes; }
};

// A tile for the first stage of `program`: where it is, or copied to `edge`
// with zeros where it leaves the image.
inline Source TileSource(const Program& program, const Window& w,
                         const Slice<const float>& image, float* edge) {
  const Stage& stage = First(program);
  if (program.along_axis && w.InPlace() && image.whole()) {
    const float* data =
        image.data + w.pixel(w.first[0], w.first[1], w.first[2]) * image.all;
    // The first stage acts on rows; that of a transposed program on columns.
    const int64_t row = w.size[2] * image.all;
    const bool on_rows = stage.inner == w.count[2];
    return {data, row, on_rows ? row : image.all, image.all};
  }
  // No store changes them, which the compiler does not know.
  const int64_t all = image.all, count = image.count;
  const int64_t vectors = image.vectors;
  float* to = edge;
  for (int64_t a = w.first[0]; a < w.first[0] + w.count[0]; ++a) {
    const bool in_a = a >= 0 && a < w.size[0];
    for (int64_t b = w.first[1]; b < w.first[1] + w.count[1]; ++b) {
      const bool in_b = in_a && b >= 0 && b < w.size[1];
      for (int64_t c = w.first[2]; c < w.first[2] + w.count[2]; ++c) {
        const bool inside = in_b && c >= 0 && c < w.size[2];
        CopyIn(inside ? image.data + w.pixel(a, b, c) * all : image.data,
               inside ? count : 0, vectors, to);
        to += vectors * kLanes;
      }
    }
  }
  return PackedSource(stage, edge, vectors * kLanes);
}

// Runs `program` into a tile of `image`; what leaves the image is dropped.
// With `add`, tiles overlap and sum up.
inline void RunIntoTile(const Program& program, Source from, const Window& w,
                        const Slice<float>& image, const float* bias, bool relu,
                        bool add, float* scratch) {
  const int64_t all = image.all, count = image.count;
  const int64_t vectors = image.vectors;
  Vector plus[4] = {};
  if (bias) CopyIn(bias, count, vectors, reinterpret_cast<float*>(plus));
  if (!add && program.along_axis && w.InPlace() && image.whole()) {
    float* data =
        image.data + w.pixel(w.first[0], w.first[1], w.first[2]) * image.all;
    Run(program, from, {data, w.size[2] * image.all, image.all, image.all},
        vectors, scratch, bias ? plus : nullptr, relu);
    return;
  }
  const float* values = EdgeOf(program, scratch);
  Run(program, from,
      PackedTarget(Last(program), EdgeOf(program, scratch), vectors * kLanes),
      vectors, scratch, bias ? plus : nullptr, relu);
  for (int64_t a = w.first[0]; a < w.first[0] + w.count[0]; ++a) {
    const bool in_a = a >= 0 && a < w.size[0];
    for (int64_t b = w.first[1]; b < w.first[1] + w.count[1]; ++b) {
      const bool in_b = in_a && b >= 0 && b < w.size[1];
      for (int64_t c = w.first[2]; c < w.first[2] + w.count[2]; ++c) {
        if (in_b && c >= 0 && c < w.size[2]) {
          float* to = image.data + w.pixel(a, b, c) * all;
          for (int64_t i = 0; i < count; i += kLanes) {
            const int64_t lanes = Min(kLanes, count - i);
            Vector v = Load(values + i);
            if (lanes == kLanes) {
              Store(to + i, add ? Load(to + i) + v : v);
            } else {
              if (add) v += Load(to + i, lanes);
              Store(to + i, v, lanes);
            }
          }
        }
        values += vectors * kLanes;
      }
    }
  }
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_TRANSFORM_IMPL_H_
