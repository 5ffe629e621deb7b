// The gradient for the kernel, one panel of filters at a time, and what all
// ways to it share. Included by passes_impl.h, once for each instruction set:
// no include guard.

// A' dy of some panels and tiles, to [points, panels, tiles of a row, kPanel].
void TransformMaps(const Geometry& g, const Program& maps, const float* dy,
                   int64_t first_panel, int64_t last_panel, int64_t first,
                   int64_t last, int64_t row, int64_t plane, float* to,
                   float* scratch) {
  for (int64_t t = first; t < last; ++t) {
    int64_t image;
    const Window w = OutputWindow(g, t, &image);
    const float* pixels = dy + image * Pixels(g.output) * g.filters;
    // One panel at a time.
    const int64_t most = Min(kPanel / kLanes, VectorsOf(maps)) * kLanes;
    for (int64_t f = first_panel * kPanel; f < last_panel * kPanel; f += most) {
      const int64_t count = Max(0, Min(most, g.filters - f));
      const Source source =
          TileSource(maps, w, pixels + Min(f, g.filters), g.filters, count,
                     most / kLanes, EdgeOf(maps, scratch));
      const int64_t place = (f / kPanel - first_panel) * row + t - first;
      Run(maps, source,
          PackedTarget(Last(maps), to + place * kPanel + f % kPanel, plane),
          most / kLanes, scratch);
    }
  }
}

// G' of the spectra of some channels and filters, [points, channels, row].
void FinishKernel(const Geometry& g, const Program& kernel, int64_t first_c,
                  int64_t last_c, int64_t first_f, int64_t last_f,
                  const float* spectra, int64_t row, int64_t plane, float* dk,
                  float* scratch) {
  const int64_t most = VectorsOf(kernel) * kLanes;
  const int64_t size = g.channels * g.filters;
  for (int64_t c = first_c; c < last_c; ++c) {
    for (int64_t f = first_f; f < last_f; f += most) {
      const int64_t count = Min(most, last_f - f);
      const int64_t vectors = RoundUp(count, kLanes) / kLanes;
      const Source from =
          PackedSource(First(kernel),
                       spectra + (c - first_c) * row + f - first_f, plane);
      float* to = dk + c * g.filters + f;
      if (count == vectors * kLanes) {
        Run(kernel, from, PackedTarget(Last(kernel), to, size), vectors,
            scratch);
        continue;
      }
      float* values = EdgeOf(kernel, scratch);
      Run(kernel, from, PackedTarget(Last(kernel), values, vectors * kLanes),
          vectors, scratch);
      for (int64_t place = 0; place < Pixels(g.window); ++place) {
        for (int64_t i = 0; i < count; ++i) {
          to[place * size + i] = values[place * vectors * kLanes + i];
        }
      }
    }
  }
}

// Where the spectra of images stay in the caches and those of the feature
// maps, of many more channels, do not: each thread makes and uses the latter a
// panel and a few tiles at a time.
bool ByPanels(const Geometry& g, const Sizes& s, int threads) {
  return g.points * s.tiles * s.depth <= kFar &&
         g.points * s.tiles * s.width > kFar && s.panels >= threads;
}

struct PanelSizes {
  PanelSizes(const Geometry& g, const Sizes& s)
      : tiles(g.points * s.exact_depth * kPanel > kNear
                  ? s.tiles
                  : PartOf(s.tiles,
                           Max(3 * kRows, kNear / (g.points * kPanel)))),
        x_plane(Sizes::Plane(s.tiles, s.depth)),
        y_plane(Sizes::Plane(tiles, kPanel)),
        k_plane(Sizes::Plane(s.exact_depth, kPanel)) {}

  int64_t OfOne(const Geometry& g, const Program& image, const Program& maps,
                const Program& kernel) const {
    return g.points * (y_plane + k_plane) +
           Max(ScratchOf(image), Max(ScratchOf(maps), ScratchOf(kernel)));
  }

  int64_t tiles, x_plane, y_plane, k_plane;
};

int64_t PanelsScratch(const Geometry& g, const Program& image,
                      const Program& maps, const Program& kernel,
                      int threads) {
  const PanelSizes sizes(g, Sizes(g, false));
  return g.points * sizes.x_plane +
         threads * sizes.OfOne(g, image, maps, kernel);
}

void GradientByPanels(const Geometry& g, const Program& image,
                      const Program& maps, const Program& kernel,
                      const float* x, const float* dy, float* dk,
                      float* scratch, Pool& pool) {
  const Sizes s(g, false);
  const PanelSizes sizes(g, s);
  const int64_t of_one = sizes.OfOne(g, image, maps, kernel);
  const int64_t of_spectra = g.points * (sizes.y_plane + sizes.k_plane);
  float* of_x = scratch;
  float* of_workers = of_x + g.points * sizes.x_plane;
  TransformAll(g, s, image, InputWindow, x, sizes.x_plane, of_x,
               of_workers + of_spectra, of_one, pool);
  const int64_t workers = Min(pool.threads(), s.panels);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* of_y = of_workers + worker * of_one;
      float* of_k = of_y + g.points * sizes.y_plane;
      float* mine = of_y + of_spectra;
      for (int64_t panel = s.panels * worker / workers;
           panel < s.panels * (worker + 1) / workers; ++panel) {
        for (int64_t first = 0; first < s.tiles; first += sizes.tiles) {
          const int64_t tiles = Min(sizes.tiles, s.tiles - first);
          TransformMaps(g, maps, dy, panel, panel + 1, first, first + tiles,
                        tiles, sizes.y_plane, of_y, mine);
          for (int64_t p = 0; p < g.points; ++p) {
            Multiply(g.channels, 1, tiles,
                     of_x + p * sizes.x_plane + first * s.depth, 1, s.depth,
                     of_y + p * sizes.y_plane, tiles, of_k + p * sizes.k_plane,
                     kPanel, first > 0);
          }
        }
        const int64_t f = panel * kPanel;
        FinishKernel(g, kernel, 0, g.channels, f, Min(f + kPanel, g.filters),
                     of_k, kPanel, sizes.k_plane, dk, mine);
      }
    }
  });
}
