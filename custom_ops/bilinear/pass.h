// What a pass of a bilinear convolution, y = A [(G k) * (B x)], is made of.
//
// An algorithm reaches this code as three linear maps, each a `Program`: a
// chain of small sparse matrices that take one tile (or one kernel) to its
// spectrum, or back. Nothing here knows which algorithm it runs.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASS_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASS_H_

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
  // Whether the stage next to the images can read or write their tiles where
  // these are; see `ReadsAlongAxis`.
  bool along_axis;
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
  int64_t tiles_per_image() const { return tiles(0) * tiles(1) * tiles(2); }
  int64_t total_tiles() const { return batch * tiles_per_image(); }
};

// Forward from channels to filters, by the programs of B, A and G. The adjoint
// goes the other way, by those of A', B' and G: its `image` takes feature maps
// and its `maps` gives images. The gradient for the kernel has those of B, A'
// and G'. The geometry is always that of the convolution.
struct Pass {
  Geometry geometry;
  bool adjoint;
  Program image, maps, kernel;

  // Channels that products are summed over, and those of the result.
  int64_t depth() const {
    return adjoint ? geometry.filters : geometry.channels;
  }
  int64_t width() const {
    return adjoint ? geometry.channels : geometry.filters;
  }
};

// y = A [(G k) * (B x)] + bias; and where it is below 0, with `relu`, 0.
struct ForwardTensors {
  const float* x;
  const float* kernel;  // k, or G k where that is known
  const float* bias;    // may be null
  float* y;
  bool relu;
};

// dk = G' [(B x)' (A' dy)].
struct GradientTensors {
  const float* x;
  const float* dy;
  float* dk;
};

// Runs `task(context, first, last)` over parts of [0, total) and waits.
class Pool {
 public:
  virtual ~Pool() = default;
  virtual int threads() const = 0;
  virtual void Run(int64_t total, void (*task)(void*, int64_t, int64_t),
                   void* context) = 0;
};

}  // namespace bilinear
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PASS_H_
