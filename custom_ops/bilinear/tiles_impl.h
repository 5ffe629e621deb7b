// Tiles of images to spectra and back, for one instruction set; see
// vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_TILES_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_TILES_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/transform_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

template <typename Task>
void InParallel(Pool& pool, int64_t total, Task task) {
  pool.Run(
      total,
      [](void* context, int64_t first, int64_t last) {
        (*static_cast<Task*>(context))(first, last);
      },
      &task);
}

// Memory of each thread, so many floats apart.
struct Own {
  float* data;
  int64_t each;

  float* of(int64_t worker) const { return data + worker * each; }
};

struct Range {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
};

// Of tiles or of kernels: floats from one to the next, and from one point to
// the next.
template <typename Float>
struct Spectra {
  Float* data;
  int64_t row, plane;

  Spectra from(int64_t floats) const { return {data + floats, row, plane}; }
};

Window InputWindow(const Geometry& g, int64_t tile, int64_t* image) {
  Window w;
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    const int64_t place = tile % g.tiles(axis);
    tile /= g.tiles(axis);
    w.first[axis] = place * g.step[axis] - g.pad[axis];
    w.count[axis] = g.tile(axis);
    w.size[axis] = g.image[axis];
  }
  *image = tile;
  return w;
}

Window OutputWindow(const Geometry& g, int64_t tile, int64_t* image) {
  Window w = InputWindow(g, tile, image);
  for (int axis = 0; axis < kAxes; ++axis) {
    w.first[axis] += g.pad[axis];
    w.count[axis] = g.step[axis];
    w.size[axis] = g.output[axis];
  }
  return w;
}

int64_t Pixels(const int64_t* size) { return size[0] * size[1] * size[2]; }

// The spectra of some tiles of some channels of images, [batch, image,
// channels].
void TransformTiles(const Pass& pass, const float* images, Range channels,
                    Range tiles, Spectra<float> to, float* scratch) {
  const auto window = pass.adjoint ? OutputWindow : InputWindow;
  const Program& program = pass.image;
  const int64_t all = pass.depth();
  const int64_t most = VectorsOf(program) * kLanes;
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    int64_t image;
    const Window w = window(pass.geometry, t, &image);
    const float* pixels = images + image * Pixels(w.size) * all;
    for (int64_t c = channels.begin; c < channels.end; c += most) {
      const int64_t count = Min(most, channels.end - c);
      const int64_t vectors = RoundUp(count, kLanes) / kLanes;
      const Source from =
          TileSource(program, w, {pixels + c, all, count, vectors},
                     EdgeOf(program, scratch));
      float* const place =
          to.data + (t - tiles.begin) * to.row + c - channels.begin;
      Run(program, from, PackedTarget(Last(program), place, to.plane), vectors,
          scratch);
    }
  }
}

// All spectra of all tiles of images, by all threads.
void TransformAll(const Pass& pass, const float* images, Spectra<float> to,
                  Own scratch, Pool& pool) {
  const int64_t tiles = pass.geometry.total_tiles();
  const int64_t workers = Min(pool.threads(), tiles);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const Range own = {tiles * worker / workers,
                         tiles * (worker + 1) / workers};
      TransformTiles(pass, images, {0, pass.depth()}, own,
                     to.from(own.begin * to.row), scratch.of(worker));
    }
  });
}

// Spectra of some tiles and filters, the first of each at `from`, back to
// images.
void Finish(const Pass& pass, Spectra<const float> from, Range tiles,
            Range filters, const ForwardTensors& tensors, float* scratch) {
  const Geometry& g = pass.geometry;
  const Program& program = pass.maps;
  const auto window = pass.adjoint ? InputWindow : OutputWindow;
  const int64_t pixels = Pixels(pass.adjoint ? g.image : g.output);
  const int64_t unit = g.tiles_per_image();
  const int64_t all = pass.width();
  const int64_t most = VectorsOf(program) * kLanes;
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    int64_t image;
    const Window w = window(g, t, &image);
    float* to = tensors.y + image * pixels * all;
    if (pass.adjoint && t % unit == 0) {
      for (int64_t i = 0; i < pixels; ++i) {
        float* pixel = to + i * all;
        for (int64_t f = filters.begin; f < filters.end; ++f) pixel[f] = 0;
      }
    }
    for (int64_t f = filters.begin; f < filters.end; f += most) {
      const int64_t count = Min(most, filters.end - f);
      const float* place =
          from.data + (t - tiles.begin) * from.row + f - filters.begin;
      RunIntoTile(program, PackedSource(First(program), place, from.plane), w,
                  {to + f, all, count, RoundUp(count, kLanes) / kLanes},
                  tensors.bias ? tensors.bias + f : nullptr, tensors.relu,
                  pass.adjoint, scratch);
    }
  }
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_TILES_IMPL_H_
