// The gradient for the kernel. Included by passes_impl.h, once for each
// instruction set: no include guard.

struct GradientSizes {
  GradientSizes(const Geometry& g, int threads)
      : s(g, false),
        tiles(TilesPerBlock(g, s, 8 * kRows, 24 * kRows)),
        by_panels(ByPanels(g, s, threads)),
        by_parts(!by_panels && ByParts(g, s, tiles)),
        rows(by_parts ? PartOf((g.channels + threads - 1) / threads,
                               kFar / (g.points * s.width))
                      : g.channels),
        x_plane(Sizes::Plane(tiles, s.depth)),
        y_plane(Sizes::Plane(tiles, s.width)),
        k_plane(Sizes::Plane(rows, s.width)),
        apart(!by_panels && !by_parts && threads > 1 &&
              g.points * k_plane <= kFar / threads) {}

  // Packed rows and a program's scratch.
  int64_t OfOne(const Program& image, const Program& maps,
                const Program& kernel) const {
    return tiles * kRows + 2 * kLanes +
           Max(ScratchOf(image), Max(ScratchOf(maps), ScratchOf(kernel)));
  }

  int64_t OfTiles(const Geometry& g) const {
    return g.points * (x_plane + y_plane);
  }

  Sizes s;
  int64_t tiles;  // of a block
  bool by_panels;
  // Where one block holds all tiles, the kernel's spectrum is made and taken
  // back a few channels at a time; see `ByParts`.
  bool by_parts;
  int64_t rows;  // channels at a time
  int64_t x_plane, y_plane, k_plane;
  // Where the kernel's spectrum is small each thread has one of its own, and
  // tiles of its own: none waits for another, and none reads what another has
  // in its caches, before the sum.
  bool apart;
};

int64_t GradientScratch(const Geometry& g, const Program& image,
                        const Program& maps, const Program& kernel,
                        int threads) {
  const GradientSizes sizes(g, threads);
  if (sizes.by_panels) return PanelsScratch(g, image, maps, kernel, threads);
  return (sizes.apart ? threads : 1) * sizes.OfTiles(g) +
         (sizes.apart || sizes.by_parts ? threads : 1) * g.points *
             sizes.k_plane +
         threads * sizes.OfOne(image, maps, kernel);
}

// B x and A' dy of some tiles of a block that begins at `block`.
void TransformBoth(const Geometry& g, const GradientSizes& sizes,
                   const Program& image, const Program& maps, const float* x,
                   const float* dy, int64_t block, int64_t tiles, int64_t from,
                   int64_t to, float* of_x, float* of_y, float* scratch) {
  const Sizes& s = sizes.s;
  TransformTiles(g, image, InputWindow, x, g.channels, 0, g.channels,
                 block + from, block + to, s.depth, sizes.x_plane,
                 of_x + from * s.depth, scratch);
  TransformMaps(g, maps, dy, 0, s.panels, block + from, block + to, tiles,
                sizes.y_plane, of_y + from * kPanel, scratch);
}

// The products of a block for one point and some channels.
void MultiplyChannels(const GradientSizes& sizes, int64_t tiles, int64_t first,
                      int64_t last, const float* of_x, const float* of_y,
                      float* of_k, bool add, float* packed) {
  const Sizes& s = sizes.s;
  const int64_t group = RowsPerGroup(last - first);
  for (int64_t c = first; c < last; c += group) {
    const int64_t count = Min(group, last - c);
    // Whole vectors: the next row overwrites what is too much.
    for (int64_t t = 0; t < tiles; ++t) {
      for (int64_t i = 0; i < kRows; i += kLanes) {
        Store(packed + t * count + i, Load(of_x + t * s.depth + c + i));
      }
    }
    Multiply(count, s.panels, tiles, packed, 1, count, of_y, tiles,
             of_k + (c - first) * s.width, s.width, add);
  }
}

// The kernel's spectrum from all tiles, by threads that share each block.
void GradientTogether(const Geometry& g, const GradientSizes& sizes,
                      const Program& image, const Program& maps,
                      const float* x, const float* dy, float* of_tiles,
                      float* of_k, float* own, int64_t of_one, Pool& pool) {
  const Sizes& s = sizes.s;
  float* of_x = of_tiles;
  float* of_y = of_x + g.points * sizes.x_plane;
  for (int64_t block = 0; block < s.tiles; block += sizes.tiles) {
    const int64_t tiles = Min(sizes.tiles, s.tiles - block);
    const int64_t movers = Min(pool.threads(), tiles);
    InParallel(pool, movers, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        TransformBoth(g, sizes, image, maps, x, dy, block, tiles,
                      tiles * worker / movers, tiles * (worker + 1) / movers,
                      of_x, of_y, own + worker * of_one);
      }
    });
    if (sizes.by_parts) return;
    // Their product, added to the kernel's spectrum.
    const int64_t multipliers = Min(pool.threads(), g.points);
    InParallel(pool, multipliers, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        for (int64_t p = g.points * worker / multipliers;
             p < g.points * (worker + 1) / multipliers; ++p) {
          MultiplyChannels(sizes, tiles, 0, g.channels,
                           of_x + p * sizes.x_plane, of_y + p * sizes.y_plane,
                           of_k + p * sizes.k_plane, block > 0,
                           own + worker * of_one);
        }
      }
    });
  }
}

// The same by threads that share nothing until the sum, which is that of the
// first.
void GradientApart(const Geometry& g, const GradientSizes& sizes,
                   const Program& image, const Program& maps, const float* x,
                   const float* dy, float* of_tiles, float* of_k, float* own,
                   int64_t of_one, Pool& pool) {
  const Sizes& s = sizes.s;
  const int64_t workers = Min(pool.threads(), s.tiles);
  const int64_t of_kernel = g.points * sizes.k_plane;
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* of_x = of_tiles + worker * sizes.OfTiles(g);
      float* of_y = of_x + g.points * sizes.x_plane;
      float* mine = own + worker * of_one;
      const int64_t first = s.tiles * worker / workers;
      const int64_t stop = s.tiles * (worker + 1) / workers;
      for (int64_t block = first; block < stop; block += sizes.tiles) {
        const int64_t tiles = Min(sizes.tiles, stop - block);
        TransformBoth(g, sizes, image, maps, x, dy, block, tiles, 0, tiles,
                      of_x, of_y, mine);
        for (int64_t p = 0; p < g.points; ++p) {
          MultiplyChannels(sizes, tiles, 0, g.channels,
                           of_x + p * sizes.x_plane, of_y + p * sizes.y_plane,
                           of_k + worker * of_kernel + p * sizes.k_plane,
                           block > first, mine);
        }
      }
    }
  });
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    const int64_t last = of_kernel * end / workers / kLanes * kLanes;
    for (int64_t i = of_kernel * begin / workers / kLanes * kLanes; i < last;
         i += kLanes) {
      Vector sum = Load(of_k + i);
      for (int64_t other = 1; other < workers; ++other) {
        sum += Load(of_k + other * of_kernel + i);
      }
      Store(of_k + i, sum);
    }
  });
}

void Gradient(const Geometry& g, const Program& image, const Program& maps,
              const Program& kernel, const float* x, const float* dy,
              float* dk, float* scratch, Pool& pool) {
  const int threads = pool.threads();
  const GradientSizes sizes(g, threads);
  if (sizes.by_panels) {
    GradientByPanels(g, image, maps, kernel, x, dy, dk, scratch, pool);
    return;
  }
  const Sizes& s = sizes.s;
  const int64_t of_one = sizes.OfOne(image, maps, kernel);
  float* of_tiles = scratch;
  float* of_k = of_tiles + (sizes.apart ? threads : 1) * sizes.OfTiles(g);
  float* own = of_k + (sizes.apart || sizes.by_parts ? threads : 1) *
                          g.points * sizes.k_plane;
  const auto run = sizes.apart ? GradientApart : GradientTogether;
  run(g, sizes, image, maps, x, dy, of_tiles, of_k, own, of_one, pool);

  const int64_t finishers = Min(threads, g.channels);
  InParallel(pool, finishers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* mine = own + worker * of_one;
      const int64_t stop = g.channels * (worker + 1) / finishers;
      int64_t first = g.channels * worker / finishers;
      if (!sizes.by_parts) {
        FinishKernel(g, kernel, first, stop, 0, g.filters,
                     of_k + first * s.width, s.width, sizes.k_plane, dk, mine);
        continue;
      }
      const float* of_x = of_tiles;
      const float* of_y = of_x + g.points * sizes.x_plane;
      float* spectra = of_k + worker * g.points * sizes.k_plane;
      for (; first < stop; first += sizes.rows) {
        const int64_t last = Min(first + sizes.rows, stop);
        for (int64_t p = 0; p < g.points; ++p) {
          MultiplyChannels(sizes, s.tiles, first, last,
                           of_x + p * sizes.x_plane, of_y + p * sizes.y_plane,
                           spectra + p * sizes.k_plane, false, mine);
        }
        FinishKernel(g, kernel, first, last, 0, g.filters, spectra, s.width,
                     sizes.k_plane, dk, mine);
      }
    }
  });
}
