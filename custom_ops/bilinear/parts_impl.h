// The forward pass, one panel and a few channels at a time; see `ByParts`.
// Included by passes_impl.h, once for each instruction set: no include guard.

struct PartSizes {
  PartSizes(const Geometry& g, const Sizes& s)
      : from_plane(Sizes::Plane(s.tiles, s.depth)),
        depth(PartOf(s.exact_depth, kNear / (g.points * kPanel))),
        kernel_plane(Sizes::Plane(depth, kPanel)),
        to_plane(Sizes::Plane(s.tiles, kPanel)) {}

  int64_t from_plane, depth, kernel_plane, to_plane;
};

int64_t PartsScratchOfOne(const Geometry& g, const PartSizes& sizes,
                           const Program& source, const Program& target,
                           const Program& kernel) {
  return g.points * (sizes.kernel_plane + sizes.to_plane) +
         Max(ScratchOf(kernel), Max(ScratchOf(source), ScratchOf(target)));
}

int64_t PartsScratch(const Geometry& g, bool adjoint, const Program& source,
                      const Program& target, const Program& kernel,
                      int threads) {
  const Sizes s(g, adjoint);
  if (!ByParts(g, s, ForwardTiles(g, s))) return 0;
  const PartSizes sizes(g, s);
  return g.points * sizes.from_plane +
         threads * PartsScratchOfOne(g, sizes, source, target, kernel);
}

void ForwardByParts(const Geometry& g, bool adjoint, const Program& source,
                     const Program& target, const Program& kernel,
                     const float* x, const float* k, const float* bias,
                     float* y, float* scratch, Pool& pool) {
  const Sizes s(g, adjoint);
  const PartSizes sizes(g, s);
  const int64_t of_one = PartsScratchOfOne(g, sizes, source, target, kernel);
  const int64_t of_spectra = g.points * (sizes.kernel_plane + sizes.to_plane);
  float* spectra = scratch;
  float* of_workers = spectra + g.points * sizes.from_plane;
  TransformAll(g, s, source, adjoint ? OutputWindow : InputWindow, x,
               sizes.from_plane, spectra, of_workers + of_spectra, of_one,
               pool);
  const int64_t workers = Min(pool.threads(), s.panels);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* of_kernel = of_workers + worker * of_one;
      float* to = of_kernel + g.points * sizes.kernel_plane;
      float* mine = of_kernel + of_spectra;
      for (int64_t panel = s.panels * worker / workers;
           panel < s.panels * (worker + 1) / workers; ++panel) {
        for (int64_t c = 0; c < s.exact_depth; c += sizes.depth) {
          const int64_t depth = Min(sizes.depth, s.exact_depth - c);
          SpectrumOf(g, s, kernel, adjoint, k, c, c + depth, panel, panel + 1,
                     of_kernel, depth, sizes.kernel_plane, mine);
          for (int64_t p = 0; p < g.points; ++p) {
            Multiply(s.tiles, 1, depth, spectra + p * sizes.from_plane + c,
                     s.depth, 1, of_kernel + p * sizes.kernel_plane, depth,
                     to + p * sizes.to_plane, kPanel, c > 0);
          }
        }
        const int64_t f = panel * kPanel;
        Finish(g, s, target, adjoint, to, sizes.to_plane, kPanel, 0, s.tiles,
               f, Min(f + kPanel, s.exact_width), bias, y, mine);
      }
    }
  });
}
