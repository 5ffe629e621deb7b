// Kernels to their spectra, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_KERNELS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_KERNELS_IMPL_H_

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

// The kernels of one channel for some filters, or the other way round.
void CopyKernel(const Pass& pass, const float* kernel, int64_t channel,
                Range filters, int64_t vectors, float* copy) {
  const Geometry& g = pass.geometry;
  const int64_t size = g.channels * g.filters;
  const int64_t count = filters.size();
  for (int64_t place = 0; place < Pixels(g.window); ++place) {
    const float* source = kernel + place * size;
    if (pass.adjoint) {
      source += filters.begin * g.filters + channel;
      for (int64_t i = 0; i < count; ++i) copy[i] = source[i * g.filters];
      for (int64_t i = count; i < vectors * kLanes; ++i) copy[i] = 0;
    } else {
      CopyIn(source + channel * g.filters + filters.begin, count, vectors,
             copy);
    }
    copy += vectors * kLanes;
  }
}

// Spectra of the kernels of some channels and panels, to [points, panels,
// `to.row`, kPanel].
void SpectrumOf(const Pass& pass, const float* kernel, Range channels,
                Range panels, Spectra<float> to, float* scratch) {
  const Geometry& g = pass.geometry;
  const Program& program = pass.kernel;
  // One panel at a time.
  const int64_t vectors = Min(kPanel / kLanes, VectorsOf(program));
  const int64_t most = vectors * kLanes;
  const int64_t size = g.channels * g.filters;
  const int64_t places = Pixels(g.window);
  const int64_t width = pass.width();
  float* edge = EdgeOf(program, scratch);
  const auto transform = [&](int64_t c, int64_t f) {
    const int64_t count = Max(0, Min(most, width - f));
    Source from =
        PackedSource(First(program), kernel + c * g.filters + f, size);
    if (pass.adjoint || count < most) {
      CopyKernel(pass, kernel, c, {f, f + count}, vectors, edge);
      from = PackedSource(First(program), edge, most);
    } else {
      // Places are far apart, and so are channels: no processor guesses
      // where the next ones are.
      for (int64_t place = 0; place < places; ++place) {
        const float* next = kernel + place * size +
                            Min(c + 4, channels.end - 1) * g.filters + f;
        for (int64_t i = 0; i < most; i += 16) __builtin_prefetch(next + i);
      }
    }
    const int64_t row =
        (f / kPanel - panels.begin) * to.row + c - channels.begin;
    float* const target = to.data + row * kPanel + f % kPanel;
    Run(program, from, PackedTarget(Last(program), target, to.plane), vectors,
        scratch);
  };
  // In runs long enough for both kernel and spectrum to stay in a page.
  constexpr int64_t kRun = 32;
  for (int64_t begin = channels.begin; begin < channels.end; begin += kRun) {
    const int64_t end = Min(begin + kRun, channels.end);
    for (int64_t f = panels.begin * kPanel; f < panels.end * kPanel;
         f += most) {
      for (int64_t c = begin; c < end; ++c) transform(c, f);
    }
  }
}

void Spectrum(const Pass& pass, const ForwardSizes& sizes, const float* kernel,
              float* spectrum, float* scratch, Pool& pool) {
  const Sizes& s = sizes.common;
  const Own own = {scratch, sizes.of_kernel_program};
  const int64_t workers = Min(pool.threads(), s.exact_depth);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const Range channels = {s.exact_depth * worker / workers,
                              s.exact_depth * (worker + 1) / workers};
      SpectrumOf(pass, kernel, channels, {0, s.panels},
                 {spectrum + channels.begin * kPanel, s.exact_depth,
                  sizes.spectrum_plane},
                 own.of(worker));
    }
  });
}

}  // namespace
}  // namespace bilinear
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_KERNELS_IMPL_H_
