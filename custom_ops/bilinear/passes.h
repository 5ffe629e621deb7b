// The passes of a bilinear convolution, y = A [(G k) * (B x)].
//
// An algorithm reaches this code as three linear maps, each a `Program`: a
// chain of small sparse matrices that take one tile (or one kernel) to its
// spectrum, or back. Nothing here knows which algorithm it runs. Vectors run
// along channels, so every number of a program is applied to 4, 8 or 16
// channels at once, and every point of the spectrum is one matrix product
// between tiles and filters.
//
// Nothing in this file or in passes_impl.h may use the standard library's
// templates: the same code is compiled for several instruction sets, and a
// linker would merge what they share.

#ifndef TF_CONVPAR_BILINEAR_PASSES_H_
#define TF_CONVPAR_BILINEAR_PASSES_H_

#include <cstdint>

namespace tf_convpar {
namespace bilinear {

constexpr int kAxes = 3;  // Images of fewer axes have leading axes of size 1.

// A sparse matrix times each column of [outer, cols, inner], giving
// [outer, rows, inner].
struct Stage {
  int rows, cols, outer, inner;
  const int* begin;  // rows + 1 places in `index` and `value`
  const int* index;
  const float* value;
};

struct Program {
  int num_stages;
  const Stage* stages;
  int inputs, outputs;  // values of a tile before and after
  int largest;          // of any stage, for the scratch
};

struct Geometry {
  int64_t batch, channels, filters;
  int64_t image[kAxes];   // of the input
  int64_t output[kAxes];  // of the feature maps
  int64_t window[kAxes];  // of the kernel
  int64_t step[kAxes];    // outputs per tile
  int64_t pad[kAxes];     // zeros before the image
  int64_t points;         // of the spectrum

  int64_t tile(int axis) const { return step[axis] + window[axis] - 1; }
  int64_t tiles(int axis) const {
    return (output[axis] + step[axis] - 1) / step[axis];
  }
  int64_t total_tiles() const {
    return batch * tiles(0) * tiles(1) * tiles(2);
  }
};

// Runs `task(context, first, last)` over parts of [0, total) and waits.
class Pool {
 public:
  virtual ~Pool() = default;
  virtual int threads() const = 0;
  virtual void Run(int64_t total, void (*task)(void*, int64_t, int64_t),
                   void* context) = 0;
};

// One instruction set's code.
struct Passes {
  const char* name;

  // Floats that hold the spectrum of kernels, [points, panels, channels,
  // panel]; for the adjoint pass channels and filters change places.
  int64_t (*spectrum_size)(const Geometry&, bool adjoint);
  // Floats of scratch that each pass needs.
  int64_t (*spectrum_scratch)(const Program& kernel, int threads);
  int64_t (*forward_scratch)(const Geometry&, bool adjoint,
                             const Program& source, const Program& target,
                             int threads);
  // Of `forward_by_parts`; 0 where `forward` is better.
  int64_t (*parts_scratch)(const Geometry&, bool adjoint,
                            const Program& source, const Program& target,
                            const Program& kernel, int threads);
  int64_t (*gradient_scratch)(const Geometry&, const Program& image,
                              const Program& maps, const Program& kernel,
                              int threads);

  // G k.
  void (*spectrum)(const Geometry&, const Program& kernel, bool adjoint,
                   const float* k, float* spectrum, float* scratch, Pool&);
  // y = A [spectrum * (B x)] + bias from the programs of B and A. The adjoint
  // is x = B' [spectrum * (A' y)] from those of A' and B'; the geometry stays
  // that of the convolution. `bias` may be null.
  void (*forward)(const Geometry&, bool adjoint, const Program& source,
                  const Program& target, const float* x,
                  const float* spectrum, const float* bias, float* y,
                  float* scratch, Pool&);
  // The same, but makes a part of the kernels' spectrum at a time, from the
  // program of G.
  void (*forward_by_parts)(const Geometry&, bool adjoint,
                            const Program& source, const Program& target,
                            const Program& kernel, const float* x,
                            const float* k, const float* bias, float* y,
                            float* scratch, Pool&);
  // G' [(B x)' (A' dy)] from the programs of B, A' and G'.
  void (*gradient)(const Geometry&, const Program& image, const Program& maps,
                   const Program& kernel, const float* x, const float* dy,
                   float* dk, float* scratch, Pool&);
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

#endif  // TF_CONVPAR_BILINEAR_PASSES_H_
