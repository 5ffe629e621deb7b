// The gradient for the kernel, one panel of filters at a time, and what all
// ways to it share, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PANELS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PANELS_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/tiles_impl.h"
#include "custom_ops/bilinear/transform_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

// A' dy of some panels and tiles, to [points, panels, `to.row`, kPanel].
void TransformMaps(const Pass& pass, const float* dy, Range panels, Range tiles,
                   Spectra<float> to, float* scratch) {
  const Geometry& g = pass.geometry;
  const Program& program = pass.maps;
  // One panel at a time.
  const int64_t vectors = Min(kPanel / kLanes, VectorsOf(program));
  const int64_t most = vectors * kLanes;
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    int64_t image;
    const Window w = OutputWindow(g, t, &image);
    const float* pixels = dy + image * Pixels(g.output) * g.filters;
    for (int64_t f = panels.begin * kPanel; f < panels.end * kPanel;
         f += most) {
      const int64_t count = Max(0, Min(most, g.filters - f));
      const Source from = TileSource(
          program, w, {pixels + Min(f, g.filters), g.filters, count, vectors},
          EdgeOf(program, scratch));
      const int64_t row =
          (f / kPanel - panels.begin) * to.row + t - tiles.begin;
      float* const target = to.data + row * kPanel + f % kPanel;
      Run(program, from, PackedTarget(Last(program), target, to.plane), vectors,
          scratch);
    }
  }
}

// G' of the spectra of some channels and filters, the first of each at `from`.
void FinishKernel(const Pass& pass, Spectra<const float> from, Range channels,
                  Range filters, float* dk, float* scratch) {
  const Geometry& g = pass.geometry;
  const Program& program = pass.kernel;
  const int64_t most = VectorsOf(program) * kLanes;
  const int64_t size = g.channels * g.filters;
  for (int64_t c = channels.begin; c < channels.end; ++c) {
    for (int64_t f = filters.begin; f < filters.end; f += most) {
      const int64_t count = Min(most, filters.end - f);
      const int64_t vectors = RoundUp(count, kLanes) / kLanes;
      const float* place =
          from.data + (c - channels.begin) * from.row + f - filters.begin;
      const Source source = PackedSource(First(program), place, from.plane);
      float* to = dk + c * g.filters + f;
      if (count == vectors * kLanes) {
        Run(program, source, PackedTarget(Last(program), to, size), vectors,
            scratch);
        continue;
      }
      float* values = EdgeOf(program, scratch);
      Run(program, source,
          PackedTarget(Last(program), values, vectors * kLanes), vectors,
          scratch);
      for (int64_t pixel = 0; pixel < Pixels(g.window); ++pixel) {
        for (int64_t i = 0; i < count; ++i) {
          to[pixel * size + i] = values[pixel * vectors * kLanes + i];
        }
      }
    }
  }
}

void GradientByPanels(const Pass& pass, const GradientSizes& sizes,
                      const GradientTensors& tensors, float* scratch,
                      Pool& pool) {
  const Geometry& g = pass.geometry;
  const Sizes& s = sizes.common;
  const PanelSizes& of_panel = sizes.panel;
  const int64_t of_spectra = s.points * (of_panel.y_plane + of_panel.k_plane);
  float* of_x = scratch;
  const Own own = {of_x + s.points * of_panel.x_plane, of_panel.of_one};
  TransformAll(pass, tensors.x, {of_x, s.depth, of_panel.x_plane},
               {own.data + of_spectra, own.each}, pool);
  const int64_t workers = Min(pool.threads(), s.panels);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* of_y = own.of(worker);
      float* of_k = of_y + s.points * of_panel.y_plane;
      float* mine = of_y + of_spectra;
      for (int64_t panel = s.panels * worker / workers;
           panel < s.panels * (worker + 1) / workers; ++panel) {
        for (int64_t first = 0; first < s.tiles; first += of_panel.tiles) {
          const int64_t tiles = Min(of_panel.tiles, s.tiles - first);
          TransformMaps(pass, tensors.dy, {panel, panel + 1},
                        {first, first + tiles}, {of_y, tiles, of_panel.y_plane},
                        mine);
          for (int64_t p = 0; p < s.points; ++p) {
            const float* x = of_x + p * of_panel.x_plane + first * s.depth;
            Multiply({g.channels, 1, tiles}, {x, 1, s.depth},
                     {of_y + p * of_panel.y_plane, tiles},
                     {of_k + p * of_panel.k_plane, kPanel}, first > 0);
          }
        }
        const int64_t f = panel * kPanel;
        FinishKernel(pass, {of_k, kPanel, of_panel.k_plane}, {0, g.channels},
                     {f, Min(f + kPanel, g.filters)}, tensors.dk, mine);
      }
    }
  });
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PANELS_IMPL_H_
