// The gradient for the kernel. Included by passes_impl.h, once for each
// instruction set: no include guard.

// Spectra of images, of feature maps in panels, of kernels; packed rows and
// a program's scratch for each thread.
int64_t GradientPacked(const Geometry& g, const Program& image,
                       const Program& maps, const Program& kernel) {
  return GradientTiles(g) * kRows + 2 * kLanes +
         Max(ScratchOf(image), Max(ScratchOf(maps), ScratchOf(kernel)));
}

int64_t GradientScratch(const Geometry& g, const Program& image,
                        const Program& maps, const Program& kernel,
                        int threads) {
  const Sizes s(g, false);
  const int64_t tiles = GradientTiles(g);
  return g.points * (Sizes::Plane(tiles, s.depth) +
                     Sizes::Plane(tiles, s.width) +
                     Sizes::Plane(g.channels, s.width)) +
         threads * GradientPacked(g, image, maps, kernel);
}

void Gradient(const Geometry& g, const Program& image, const Program& maps,
              const Program& kernel, const float* x, const float* dy,
              float* dk, float* scratch, Pool& pool) {
  const Sizes s(g, false);
  const int64_t size = GradientTiles(g);
  const int64_t x_plane = Sizes::Plane(size, s.depth);
  const int64_t y_plane = Sizes::Plane(size, s.width);
  const int64_t k_plane = Sizes::Plane(g.channels, s.width);
  float* of_x = scratch;
  float* of_y = of_x + g.points * x_plane;
  float* of_k = of_y + g.points * y_plane;
  float* private_part = of_k + g.points * k_plane;
  const int64_t private_size = GradientPacked(g, image, maps, kernel);
  const int threads = pool.threads();

  for (int64_t first = 0; first < s.tiles; first += size) {
    const int64_t tiles = Min(size, s.tiles - first);
    // A' dy and B x of these tiles.
    const int64_t movers = Min(threads, tiles);
    InParallel(pool, movers, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        float* mine = private_part + worker * private_size;
        const int64_t from = tiles * worker / movers;
        const int64_t to = tiles * (worker + 1) / movers;
        TransformTiles(g, image, InputWindow, x, g.channels, first + from,
                       first + to, s.depth, x_plane, of_x + from * s.depth,
                       mine);
        for (int64_t t = from; t < to; ++t) {
          int64_t which;
          const Window w = OutputWindow(g, first + t, &which);
          const float* pixels = dy + which * Pixels(g.output) * g.filters;
          // One panel at a time.
          const int64_t most =
              Min(kPanel / kLanes, VectorsOf(maps)) * kLanes;
          for (int64_t f = 0; f < s.width; f += most) {
            const int64_t count = Max(0, Min(most, g.filters - f));
            const Source source = TileSource(
                maps, w, pixels + Min(f, g.filters), g.filters, count,
                most / kLanes, EdgeOf(maps, mine));
            float* target =
                of_y + (f / kPanel * tiles + t) * kPanel + f % kPanel;
            Run(maps, source, PackedTarget(Last(maps), target, y_plane),
                most / kLanes, mine);
          }
        }
      }
    });
    // Their product, added to the kernel's spectrum.
    const int64_t multipliers = Min(threads, g.points);
    InParallel(pool, multipliers, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        float* packed = private_part + worker * private_size;
        const int64_t rows = RowsPerGroup(g.channels);
        for (int64_t p = g.points * worker / multipliers;
             p < g.points * (worker + 1) / multipliers; ++p) {
          for (int64_t c = 0; c < g.channels; c += rows) {
            const int64_t count = Min(rows, g.channels - c);
            const float* source = of_x + p * x_plane + c;
            // Whole vectors: the next row overwrites what is too much.
            for (int64_t t = 0; t < tiles; ++t) {
              for (int64_t i = 0; i < kRows; i += kLanes) {
                Store(packed + t * count + i,
                      Load(source + t * s.depth + i));
              }
            }
            Multiply(count, s.panels, tiles, packed, 1, count,
                     of_y + p * y_plane, of_k + p * k_plane + c * s.width,
                     s.width, first > 0);
          }
        }
      }
    });
  }
  // G' of the sum.
  const int64_t places = Pixels(g.window);
  const int64_t finishers = Min(threads, g.channels);
  InParallel(pool, finishers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* mine = private_part + worker * private_size;
      for (int64_t c = g.channels * worker / finishers;
           c < g.channels * (worker + 1) / finishers; ++c) {
        const int64_t most = VectorsOf(kernel) * kLanes;
        for (int64_t f = 0; f < g.filters; f += most) {
          const int64_t count = Min(most, g.filters - f);
          const int64_t vectors = RoundUp(count, kLanes) / kLanes;
          const Source from = PackedSource(
              First(kernel), of_k + c * s.width + f, k_plane);
          float* to = dk + c * g.filters + f;
          if (count == vectors * kLanes) {
            Run(kernel, from,
                PackedTarget(Last(kernel), to, g.channels * g.filters),
                vectors, mine);
            continue;
          }
          float* values = EdgeOf(kernel, mine);
          Run(kernel, from,
              PackedTarget(Last(kernel), values, vectors * kLanes), vectors,
              mine);
          for (int64_t place = 0; place < places; ++place) {
            for (int64_t i = 0; i < count; ++i) {
              to[place * g.channels * g.filters + i] =
                  values[place * vectors * kLanes + i];
            }
          }
        }
      }
    }
  });
}
