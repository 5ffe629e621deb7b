// The forward pass from a spectrum of kernels that is there as a whole, for
// one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_FORWARD_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_FORWARD_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/tiles_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

void Forward(const Pass& pass, const ForwardSizes& sizes,
             const ForwardTensors& tensors, float* scratch, Pool& pool) {
  const Sizes& s = sizes.common;
  const BlockSizes& block = sizes.block;
  const Own own = {scratch, block.of_one};
  // Tiles that overlap in the result belong to one worker.
  const int64_t unit = pass.adjoint ? pass.geometry.tiles_per_image() : 1;
  const int64_t workers = Min(pool.threads(), s.tiles / unit);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* from = own.of(worker);
      float* to = from + s.points * block.from_plane;
      float* mine = to + s.points * block.to_plane;
      const int64_t stop = s.tiles / unit * (worker + 1) / workers * unit;
      int64_t first = s.tiles / unit * worker / workers * unit;
      while (first < stop) {
        const Range tiles = {first, Min(first + block.tiles, stop)};
        for (int64_t c = 0; c < s.exact_depth; c += block.depth) {
          const int64_t depth = Min(block.depth, s.exact_depth - c);
          TransformTiles(pass, tensors.x, {c, c + depth}, tiles,
                         {from, block.row, block.from_plane}, mine);
          for (int64_t p = 0; p < s.points; ++p) {
            const float* spectrum =
                tensors.kernel + p * sizes.spectrum_plane + c * kPanel;
            Multiply({tiles.size(), s.panels, depth},
                     {from + p * block.from_plane, block.row, 1},
                     {spectrum, s.exact_depth},
                     {to + p * block.to_plane, s.width}, c > 0);
          }
        }
        Finish(pass, {to, s.width, block.to_plane}, tiles, {0, s.exact_width},
               tensors, mine);
        first = tiles.end;
      }
    }
  });
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_FORWARD_IMPL_H_
