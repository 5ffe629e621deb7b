// The forward pass, one panel and a few channels at a time, for one instruction
// set; see vectors_impl.h, and `ForwardSizes` for where.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_PARTS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_PARTS_IMPL_H_

#include <cstdint>

#include "custom_ops/bilinear/kernels_impl.h"
#include "custom_ops/bilinear/multiply_impl.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/bilinear/tiles_impl.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace bilinear {
namespace {

void ForwardByParts(const Pass& pass, const ForwardSizes& sizes,
                    const ForwardTensors& tensors, float* scratch, Pool& pool) {
  const Sizes& s = sizes.common;
  const PartSizes& part = sizes.part;
  const int64_t of_spectra = s.points * (part.kernel_plane + part.to_plane);
  float* spectra = scratch;
  const Own own = {spectra + s.points * part.from_plane, part.of_one};
  TransformAll(pass, tensors.x, {spectra, s.depth, part.from_plane},
               {own.data + of_spectra, own.each}, pool);
  const int64_t workers = Min(pool.threads(), s.panels);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* of_kernel = own.of(worker);
      float* to = of_kernel + s.points * part.kernel_plane;
      float* mine = of_kernel + of_spectra;
      for (int64_t panel = s.panels * worker / workers;
           panel < s.panels * (worker + 1) / workers; ++panel) {
        for (int64_t c = 0; c < s.exact_depth; c += part.depth) {
          const int64_t depth = Min(part.depth, s.exact_depth - c);
          SpectrumOf(pass, tensors.kernel, {c, c + depth}, {panel, panel + 1},
                     {of_kernel, depth, part.kernel_plane}, mine);
          for (int64_t p = 0; p < s.points; ++p) {
            Multiply({s.tiles, 1, depth},
                     {spectra + p * part.from_plane + c, s.depth, 1},
                     {of_kernel + p * part.kernel_plane, depth},
                     {to + p * part.to_plane, kPanel}, c > 0);
          }
        }
        const int64_t f = panel * kPanel;
        Finish(pass, {to, kPanel, part.to_plane}, {0, s.tiles},
               {f, Min(f + kPanel, s.exact_width)}, tensors, mine);
      }
    }
  });
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_PARTS_IMPL_H_
