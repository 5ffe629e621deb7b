// The gradient for the kernel, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_GRADIENT_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_GRADIENT_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/panels_impl.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/tiles_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

// Of a block of tiles, or one point of it.
struct BlockSpectra {
  float* x;
  float* y;
};

BlockSpectra SpectraAt(const GradientSizes& sizes, float* data) {
  return {data, data + sizes.common.points * sizes.x_plane};
}

BlockSpectra PointOf(const GradientSizes& sizes, BlockSpectra block,
                     int64_t point) {
  return {block.x + point * sizes.x_plane, block.y + point * sizes.y_plane};
}

// What a pass has to work with: spectra of a block, spectra of the kernel, and
// what each thread needs. Of the first two each thread may have its own.
struct GradientScratch {
  Own tiles, kernel, own;
};

GradientScratch Divide(const GradientSizes& sizes, float* scratch) {
  float* kernel = scratch + sizes.tile_copies * sizes.of_tiles;
  float* own = kernel + sizes.kernel_copies * sizes.of_kernel;
  return {{scratch, sizes.of_tiles},
          {kernel, sizes.of_kernel},
          {own, sizes.of_one}};
}

// B x and A' dy of `part`, some tiles of a block.
void TransformBoth(const Pass& pass, const GradientSizes& sizes,
                   const GradientTensors& tensors, Range block, Range part,
                   BlockSpectra to, float* scratch) {
  const Sizes& s = sizes.common;
  const int64_t skip = part.begin - block.begin;
  TransformTiles(pass, tensors.x, {0, s.exact_depth}, part,
                 {to.x + skip * s.depth, s.depth, sizes.x_plane}, scratch);
  TransformMaps(pass, tensors.dy, {0, s.panels}, part,
                {to.y + skip * kPanel, block.size(), sizes.y_plane}, scratch);
}

// The products of some tiles for one point and some channels, to `of_k`.
void MultiplyChannels(const GradientSizes& sizes, int64_t tiles, Range channels,
                      BlockSpectra point, float* of_k, bool add,
                      float* packed) {
  const Sizes& s = sizes.common;
  // Before the loop, whose stores might change it for all the compiler knows.
  const int64_t depth = s.depth;
  const int64_t group = RowsPerGroup(channels.size());
  for (int64_t c = channels.begin; c < channels.end; c += group) {
    const int64_t count = Min(group, channels.end - c);
    // Whole vectors: the next row overwrites what is too much.
    for (int64_t t = 0; t < tiles; ++t) {
      for (int64_t i = 0; i < kRows; i += kLanes) {
        Store(packed + t * count + i, Load(point.x + t * depth + c + i));
      }
    }
    Multiply({count, s.panels, tiles}, {packed, 1, count}, {point.y, tiles},
             {of_k + (c - channels.begin) * s.width, s.width}, add);
  }
}

// The kernel's spectrum from all tiles, by threads that share each block.
void GradientTogether(const Pass& pass, const GradientSizes& sizes,
                      const GradientTensors& tensors,
                      const GradientScratch& scratch, Pool& pool) {
  const Sizes& s = sizes.common;
  const BlockSpectra spectra = SpectraAt(sizes, scratch.tiles.data);
  for (int64_t first = 0; first < s.tiles; first += sizes.tiles) {
    const Range block = {first, Min(first + sizes.tiles, s.tiles)};
    const int64_t tiles = block.size();
    const int64_t movers = Min(pool.threads(), tiles);
    InParallel(pool, movers, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        TransformBoth(pass, sizes, tensors, block,
                      {first + tiles * worker / movers,
                       first + tiles * (worker + 1) / movers},
                      spectra, scratch.own.of(worker));
      }
    });
    if (sizes.by_parts) return;
    // Their product, added to the kernel's spectrum.
    const int64_t multipliers = Min(pool.threads(), s.points);
    InParallel(pool, multipliers, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        for (int64_t p = s.points * worker / multipliers;
             p < s.points * (worker + 1) / multipliers; ++p) {
          MultiplyChannels(sizes, tiles, {0, s.exact_depth},
                           PointOf(sizes, spectra, p),
                           scratch.kernel.data + p * sizes.k_plane, first > 0,
                           scratch.own.of(worker));
        }
      }
    });
  }
}

// The same by threads that share nothing until the sum, which is that of the
// first.
void GradientApart(const Pass& pass, const GradientSizes& sizes,
                   const GradientTensors& tensors,
                   const GradientScratch& scratch, Pool& pool) {
  const Sizes& s = sizes.common;
  const int64_t workers = Min(pool.threads(), s.tiles);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const BlockSpectra spectra = SpectraAt(sizes, scratch.tiles.of(worker));
      float* mine = scratch.own.of(worker);
      const int64_t first = s.tiles * worker / workers;
      const int64_t stop = s.tiles * (worker + 1) / workers;
      for (int64_t t = first; t < stop; t += sizes.tiles) {
        const Range block = {t, Min(t + sizes.tiles, stop)};
        TransformBoth(pass, sizes, tensors, block, block, spectra, mine);
        for (int64_t p = 0; p < s.points; ++p) {
          MultiplyChannels(sizes, block.size(), {0, s.exact_depth},
                           PointOf(sizes, spectra, p),
                           scratch.kernel.of(worker) + p * sizes.k_plane,
                           t > first, mine);
        }
      }
    }
  });
  float* const sums = scratch.kernel.data;
  const int64_t of_kernel = sizes.of_kernel;
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    const int64_t last = of_kernel * end / workers / kLanes * kLanes;
    for (int64_t i = of_kernel * begin / workers / kLanes * kLanes; i < last;
         i += kLanes) {
      Vector sum = Load(sums + i);
      for (int64_t other = 1; other < workers; ++other) {
        sum += Load(sums + other * of_kernel + i);
      }
      Store(sums + i, sum);
    }
  });
}

// The kernel's gradient for some channels, by parts.
void FinishByParts(const Pass& pass, const GradientSizes& sizes,
                   BlockSpectra spectra, Range channels, float* of_k, float* dk,
                   float* scratch) {
  const Sizes& s = sizes.common;
  for (int64_t c = channels.begin; c < channels.end; c += sizes.rows) {
    const Range some = {c, Min(c + sizes.rows, channels.end)};
    for (int64_t p = 0; p < s.points; ++p) {
      MultiplyChannels(sizes, s.tiles, some, PointOf(sizes, spectra, p),
                       of_k + p * sizes.k_plane, false, scratch);
    }
    FinishKernel(pass, {of_k, s.width, sizes.k_plane}, some, {0, s.exact_width},
                 dk, scratch);
  }
}

void Gradient(const Pass& pass, const GradientSizes& sizes,
              const GradientTensors& tensors, float* memory, Pool& pool) {
  if (sizes.by_panels) {
    GradientByPanels(pass, sizes, tensors, memory, pool);
    return;
  }
  const Sizes& s = sizes.common;
  const GradientScratch scratch = Divide(sizes, memory);
  const auto run = sizes.apart ? GradientApart : GradientTogether;
  run(pass, sizes, tensors, scratch, pool);

  const int64_t finishers = Min(pool.threads(), s.exact_depth);
  InParallel(pool, finishers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const Range channels = {s.exact_depth * worker / finishers,
                              s.exact_depth * (worker + 1) / finishers};
      float* mine = scratch.own.of(worker);
      if (sizes.by_parts) {
        FinishByParts(pass, sizes, SpectraAt(sizes, scratch.tiles.data),
                      channels, scratch.kernel.of(worker), tensors.dk, mine);
      } else {
        FinishKernel(pass,
                     {scratch.kernel.data + channels.begin * s.width, s.width,
                      sizes.k_plane},
                     channels, {0, s.exact_width}, tensors.dk, mine);
      }
    }
  });
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_GRADIENT_IMPL_H_
