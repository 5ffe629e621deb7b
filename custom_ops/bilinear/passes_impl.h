// The passes of passes.h for one instruction set, which the including file
// names: ISA (a namespace), LANES (floats in a vector) and ROWS (rows of a
// matrix product that its registers hold). No include guard.

namespace tf_convpar {
namespace bilinear {
namespace ISA {
namespace {

#include "custom_ops/bilinear/vectors_impl.h"
#include "custom_ops/bilinear/transform_impl.h"

template <typename Task>
void InParallel(Pool& pool, int64_t total, Task task) {
  pool.Run(
      total,
      [](void* context, int64_t first, int64_t last) {
        (*static_cast<Task*>(context))(first, last);
      },
      &task);
}

// The products of a pass have `depth` channels and give `width`. Sizes are
// those in memory: spectra of tiles are [points, tiles of a block, depth or
// width], each point's plane an odd number of vectors apart, which keeps them
// out of one another's cache sets.
struct Sizes {
  // Forward from channels to filters; the adjoint the other way.
  Sizes(const Geometry& g, bool adjoint)
      : exact_depth(adjoint ? g.filters : g.channels),
        exact_width(adjoint ? g.channels : g.filters),
        depth(RoundUp(exact_depth, kLanes)),
        width(RoundUp(exact_width, kPanel)),
        panels(width / kPanel),
        tiles(g.total_tiles()) {}

  int64_t SpectrumPlane() const {
    return Plane(panels * exact_depth, kPanel);
  }

  static int64_t Plane(int64_t tiles, int64_t width) {
    return RoundUp(tiles * width, 32) + 16;
  }

  int64_t exact_depth, exact_width, depth, width, panels, tiles;
};

constexpr int64_t kCache = 320 << 10;  // floats: what a core keeps close

// Tiles transformed before they are multiplied. As many as a core keeps close
// if that is enough to make the reading of the spectrum of kernels cheap.
int64_t TilesPerBlock(const Geometry& g, const Sizes& s, int64_t enough,
                      int64_t many) {
  int64_t tiles = kCache / (g.points * (s.depth + s.width));
  if (tiles < enough) tiles = many;
  tiles = Min(tiles, many) / kRows * kRows;
  return Min(Max(tiles, kRows), s.tiles);
}

int64_t ForwardTiles(const Geometry& g, const Sizes& s) {
  return TilesPerBlock(g, s, 3 * kRows, 32 * kRows);
}

int64_t GradientTiles(const Geometry& g) {
  return TilesPerBlock(g, Sizes(g, false), 8 * kRows, 24 * kRows);
}

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

// The spectra of tiles of images, [batch, image, channels], to
// [points, tiles, row].
template <typename WindowOf>
void TransformTiles(const Geometry& g, const Program& program,
                    WindowOf window_of, const float* images, int64_t channels,
                    int64_t first, int64_t last, int64_t row, int64_t plane,
                    float* to, float* scratch) {
  for (int64_t t = first; t < last; ++t) {
    int64_t image;
    const Window w = window_of(g, t, &image);
    const float* pixels = images + image * Pixels(w.size) * channels;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const Source from = TileSource(program, w, pixels + c, channels,
                                     Min(kLanes, channels - c),
                                     EdgeOf(program, scratch));
      Run(program, from,
          PackedTarget(Last(program), to + (t - first) * row + c, plane),
          scratch);
    }
  }
}

int64_t SpectrumSize(const Geometry& g, bool adjoint) {
  return g.points * Sizes(g, adjoint).SpectrumPlane();
}

int64_t SpectrumScratch(const Program& kernel, int threads) {
  return threads * ScratchOf(kernel);
}

// The kernels of one channel for LANES filters, or the other way round.
void CopyKernel(const Geometry& g, bool adjoint, const float* k, int64_t from,
                int64_t to, int64_t lanes, float* copy) {
  const int64_t size = g.channels * g.filters;
  for (int64_t place = 0; place < Pixels(g.window); ++place) {
    Vector v = {};
    if (adjoint) {
      const float* source = k + place * size + to * g.filters + from;
      for (int64_t i = 0; i < lanes; ++i) v[i] = source[i * g.filters];
    } else if (lanes > 0) {
      v = LoadLanes(k + place * size + from * g.filters + to, lanes);
    }
    Store(copy + place * kLanes, v);
  }
}

void Spectrum(const Geometry& g, const Program& program, bool adjoint,
              const float* k, float* spectrum, float* scratch, Pool& pool) {
  const Sizes s(g, adjoint);
  const int64_t workers = Min(pool.threads(), s.exact_depth);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* mine = scratch + worker * ScratchOf(program);
      const int64_t first = s.exact_depth * worker / workers;
      const int64_t last = s.exact_depth * (worker + 1) / workers;
      const auto transform = [&](int64_t c, int64_t f) {
        const int64_t lanes = Max(0, Min(kLanes, s.exact_width - f));
        Source from = PackedSource(First(program), k + c * g.filters + f,
                                   g.channels * g.filters);
        if (adjoint || lanes < kLanes) {
          float* edge = EdgeOf(program, mine);
          CopyKernel(g, adjoint, k, c, f, lanes, edge);
          from = PackedSource(First(program), edge, kLanes);
        }
        float* to = spectrum + (f / kPanel * s.exact_depth + c) * kPanel +
                    f % kPanel;
        Run(program, from,
            PackedTarget(Last(program), to, s.SpectrumPlane()), mine);
      };
      // In runs long enough for both kernel and spectrum to stay in a page.
      constexpr int64_t kRun = 32;
      for (int64_t begin_c = first; begin_c < last; begin_c += kRun) {
        const int64_t end_c = Min(begin_c + kRun, last);
        for (int64_t f = 0; f < s.width; f += kLanes) {
          for (int64_t c = begin_c; c < end_c; ++c) transform(c, f);
        }
      }
    }
  });
}

int64_t ForwardScratchOfOne(const Geometry& g, bool adjoint,
                            const Program& source, const Program& target) {
  const Sizes s(g, adjoint);
  const int64_t tiles = ForwardTiles(g, s);
  return g.points * (Sizes::Plane(tiles, s.depth) +
                     Sizes::Plane(tiles, s.width)) +
         Max(ScratchOf(source), ScratchOf(target));
}

int64_t ForwardScratch(const Geometry& g, bool adjoint, const Program& source,
                       const Program& target, int threads) {
  return threads * ForwardScratchOfOne(g, adjoint, source, target);
}

void Forward(const Geometry& g, bool adjoint, const Program& source,
             const Program& target, const float* x, const float* spectrum,
             const float* bias, float* y, float* scratch, Pool& pool) {
  const Sizes s(g, adjoint);
  const auto from_window = adjoint ? OutputWindow : InputWindow;
  const auto to_window = adjoint ? InputWindow : OutputWindow;
  const int64_t size = ForwardTiles(g, s);
  const int64_t from_plane = Sizes::Plane(size, s.depth);
  const int64_t to_plane = Sizes::Plane(size, s.width);
  const int64_t y_size =
      Pixels(adjoint ? g.image : g.output) * s.exact_width;
  // Tiles that overlap in the result belong to one worker.
  const int64_t unit = adjoint ? s.tiles / g.batch : 1;
  const int64_t workers = Min(pool.threads(), s.tiles / unit);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* from = scratch + worker * ForwardScratchOfOne(g, adjoint, source,
                                                           target);
      float* to = from + g.points * from_plane;
      float* mine = to + g.points * to_plane;
      const int64_t stop = s.tiles / unit * (worker + 1) / workers * unit;
      int64_t first = s.tiles / unit * worker / workers * unit;
      while (first < stop) {
        const int64_t tiles = Min(size, stop - first);
        TransformTiles(g, source, from_window, x, s.exact_depth, first,
                       first + tiles, s.depth, from_plane, from, mine);
        for (int64_t p = 0; p < g.points; ++p) {
          Multiply(tiles, s.panels, s.exact_depth, from + p * from_plane,
                   s.depth, 1, spectrum + p * s.SpectrumPlane(),
                   to + p * to_plane, s.width, false);
        }
        for (int64_t t = first; t < first + tiles; ++t) {
          int64_t image;
          const Window w = to_window(g, t, &image);
          float* pixels = y + image * y_size;
          if (adjoint && t % unit == 0) {
            for (int64_t i = 0; i < y_size; ++i) pixels[i] = 0;
          }
          for (int64_t f = 0; f < s.exact_width; f += kLanes) {
            RunIntoTile(target,
                        PackedSource(First(target),
                                     to + (t - first) * s.width + f, to_plane),
                        w, bias ? bias + f : nullptr, adjoint, s.exact_width,
                        Min(kLanes, s.exact_width - f), pixels + f, mine);
          }
        }
        first += tiles;
      }
    }
  });
}

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
          for (int64_t f = 0; f < s.width; f += kLanes) {
            const int64_t lanes = Max(0, Min(kLanes, g.filters - f));
            const Source source =
                TileSource(maps, w, pixels + Min(f, g.filters), g.filters,
                           lanes, EdgeOf(maps, mine));
            float* target =
                of_y + (f / kPanel * tiles + t) * kPanel + f % kPanel;
            Run(maps, source, PackedTarget(Last(maps), target, y_plane), mine);
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
        for (int64_t f = 0; f < g.filters; f += kLanes) {
          const int64_t lanes = Min(kLanes, g.filters - f);
          const Source from = PackedSource(
              First(kernel), of_k + c * s.width + f, k_plane);
          float* to = dk + c * g.filters + f;
          if (lanes == kLanes) {
            Run(kernel, from,
                PackedTarget(Last(kernel), to, g.channels * g.filters), mine);
            continue;
          }
          const float* values = EdgeOf(kernel, mine);
          Run(kernel, from,
              PackedTarget(Last(kernel), EdgeOf(kernel, mine), kLanes), mine);
          for (int64_t place = 0; place < places; ++place) {
            StorePart(to + place * g.channels * g.filters,
                      Load(values + place * kLanes), lanes);
          }
        }
      }
    }
  });
}

}  // namespace

extern const Passes kPasses = {
    NAME,           kPanel,          SpectrumSize, SpectrumScratch,
    ForwardScratch, GradientScratch, Spectrum,     Forward,
    Gradient,
};

}  // namespace ISA
}  // namespace bilinear
}  // namespace tf_convpar
