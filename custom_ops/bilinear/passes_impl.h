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
        depth(RowOf(exact_depth)),
        width(RoundUp(exact_width, kPanel)),
        panels(width / kPanel),
        tiles(g.total_tiles()) {}

  int64_t SpectrumPlane() const {
    return Plane(panels * exact_depth, kPanel);
  }

  // Rows a power of two apart would fall into the same few cache sets.
  static int64_t RowOf(int64_t width) {
    return RoundUp(width, kLanes) + (width % 128 == 0 ? kLanes : 0);
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

// Where all tiles are transformed at once, the spectrum of kernels is needed
// once: it is then made, used and overwritten a part at a time, and never
// leaves the caches. Not if it is too small to leave them anyway, or if the
// spectra of tiles are so large that reading them once a part costs more.
constexpr int64_t kNear = 160 << 10;  // floats: what a near cache holds
constexpr int64_t kFar = 3 << 20;  // floats: what a far cache holds

bool ByParts(const Geometry& g, const Sizes& s, int64_t tiles) {
  return s.tiles <= tiles && g.points * s.tiles * s.depth <= kFar &&
         g.points * s.exact_depth * s.exact_width > (1 << 20);
}

// Equal parts of `all`, of at most `fit`.
int64_t PartOf(int64_t all, int64_t fit) {
  const int64_t parts = (all + Max(fit, 1) - 1) / Max(fit, 1);
  return (all + parts - 1) / parts;
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

// The spectra of tiles of some channels of images, [batch, image, channels],
// to [points, tiles, row].
template <typename WindowOf>
void TransformTiles(const Geometry& g, const Program& program,
                    WindowOf window_of, const float* images, int64_t channels,
                    int64_t first_c, int64_t last_c, int64_t first,
                    int64_t last, int64_t row, int64_t plane, float* to,
                    float* scratch) {
  for (int64_t t = first; t < last; ++t) {
    int64_t image;
    const Window w = window_of(g, t, &image);
    const float* pixels = images + image * Pixels(w.size) * channels;
    const int64_t most = VectorsOf(program) * kLanes;
    for (int64_t c = first_c; c < last_c; c += most) {
      const int64_t count = Min(most, last_c - c);
      const int64_t vectors = RoundUp(count, kLanes) / kLanes;
      const Source from = TileSource(program, w, pixels + c, channels, count,
                                     vectors, EdgeOf(program, scratch));
      Run(program, from,
          PackedTarget(Last(program), to + (t - first) * row + c - first_c,
                       plane),
          vectors, scratch);
    }
  }
}

// All spectra of all tiles of images, by all threads: [points, tiles, depth].
// The first thread's scratch begins at `scratch`, each next one's `of_one` on.
template <typename WindowOf>
void TransformAll(const Geometry& g, const Sizes& s, const Program& program,
                  WindowOf window_of, const float* images, int64_t plane,
                  float* to, float* scratch, int64_t of_one, Pool& pool) {
  const int64_t workers = Min(pool.threads(), s.tiles);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const int64_t first = s.tiles * worker / workers;
      TransformTiles(g, program, window_of, images, s.exact_depth, 0,
                     s.exact_depth, first, s.tiles * (worker + 1) / workers,
                     s.depth, plane, to + first * s.depth,
                     scratch + worker * of_one);
    }
  });
}

int64_t SpectrumSize(const Geometry& g, bool adjoint) {
  return g.points * Sizes(g, adjoint).SpectrumPlane();
}

int64_t SpectrumScratch(const Program& kernel, int threads) {
  return threads * ScratchOf(kernel);
}

// The kernels of one channel for `count` filters, or the other way round.
void CopyKernel(const Geometry& g, bool adjoint, const float* k, int64_t from,
                int64_t to, int64_t count, int64_t vectors, float* copy) {
  const int64_t size = g.channels * g.filters;
  for (int64_t place = 0; place < Pixels(g.window); ++place) {
    const float* source = k + place * size;
    if (adjoint) {
      source += to * g.filters + from;
      for (int64_t i = 0; i < count; ++i) copy[i] = source[i * g.filters];
      for (int64_t i = count; i < vectors * kLanes; ++i) copy[i] = 0;
    } else {
      CopyIn(source + from * g.filters + to, count, vectors, copy);
    }
    copy += vectors * kLanes;
  }
}

// Spectra of the kernels of some channels and panels, to [points, panels,
// row, kPanel].
void SpectrumOf(const Geometry& g, const Sizes& s, const Program& program,
                bool adjoint, const float* k, int64_t first_c, int64_t last_c,
                int64_t first_panel, int64_t last_panel, float* spectrum,
                int64_t row, int64_t plane, float* scratch) {
  // One panel at a time.
  const int64_t vectors = Min(kPanel / kLanes, VectorsOf(program));
  const int64_t most = vectors * kLanes;
  const int64_t size = g.channels * g.filters;
  const int64_t places = Pixels(g.window);
  float* edge = EdgeOf(program, scratch);
  const auto transform = [&](int64_t c, int64_t f) {
    const int64_t count = Max(0, Min(most, s.exact_width - f));
    Source from = PackedSource(First(program), k + c * g.filters + f, size);
    if (adjoint || count < most) {
      CopyKernel(g, adjoint, k, c, f, count, vectors, edge);
      from = PackedSource(First(program), edge, most);
    } else {
      // Places are far apart, and so are channels: no processor guesses
      // where the next ones are.
      for (int64_t place = 0; place < places; ++place) {
        const float* next =
            k + place * size + Min(c + 4, last_c - 1) * g.filters + f;
        for (int64_t i = 0; i < most; i += 16) __builtin_prefetch(next + i);
      }
    }
    float* to = spectrum +
                ((f / kPanel - first_panel) * row + c - first_c) * kPanel +
                f % kPanel;
    Run(program, from, PackedTarget(Last(program), to, plane), vectors,
        scratch);
  };
  // In runs long enough for both kernel and spectrum to stay in a page.
  constexpr int64_t kRun = 32;
  for (int64_t begin = first_c; begin < last_c; begin += kRun) {
    const int64_t end = Min(begin + kRun, last_c);
    for (int64_t f = first_panel * kPanel; f < last_panel * kPanel; f += most) {
      for (int64_t c = begin; c < end; ++c) transform(c, f);
    }
  }
}

void Spectrum(const Geometry& g, const Program& program, bool adjoint,
              const float* k, float* spectrum, float* scratch, Pool& pool) {
  const Sizes s(g, adjoint);
  const int64_t workers = Min(pool.threads(), s.exact_depth);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const int64_t first = s.exact_depth * worker / workers;
      SpectrumOf(g, s, program, adjoint, k, first,
                 s.exact_depth * (worker + 1) / workers, 0, s.panels,
                 spectrum + first * kPanel, s.exact_depth, s.SpectrumPlane(),
                 scratch + worker * ScratchOf(program));
    }
  });
}

// A block of tiles whose products are summed over some channels at a time.
struct BlockSizes {
  BlockSizes(const Geometry& g, const Sizes& s)
      : tiles(ForwardTiles(g, s)), depth(s.exact_depth), row(s.depth) {
    // Many channels and few results: all channels of a useful number of tiles
    // would not stay close, but some of them do, beside the sums.
    const int64_t fit =
        kCache / (g.points * (kSome + s.width)) / kRows * kRows;
    if (g.points * tiles * (s.depth + s.width) > kCache &&
        fit >= 2 * kRows && s.exact_depth >= 2 * kSome) {
      tiles = Min(fit, s.tiles);
      depth = row = kSome;
    }
    from_plane = Sizes::Plane(tiles, row);
    to_plane = Sizes::Plane(tiles, s.width);
  }

  static constexpr int64_t kSome = 64;

  int64_t tiles, depth, row, from_plane, to_plane;
};

int64_t ForwardScratchOfOne(const Geometry& g, bool adjoint,
                            const Program& source, const Program& target) {
  const Sizes s(g, adjoint);
  const BlockSizes block(g, s);
  return g.points * (block.from_plane + block.to_plane) +
         Max(ScratchOf(source), ScratchOf(target));
}

int64_t ForwardScratch(const Geometry& g, bool adjoint, const Program& source,
                       const Program& target, int threads) {
  return threads * ForwardScratchOfOne(g, adjoint, source, target);
}

// Tiles' spectra, [points, tiles, row] from `first_f` on, back to images.
void Finish(const Geometry& g, const Sizes& s, const Program& target,
            bool adjoint, const float* spectra, int64_t plane, int64_t row,
            int64_t first, int64_t last, int64_t first_f, int64_t last_f,
            const float* bias, float* y, float* scratch) {
  const auto window = adjoint ? InputWindow : OutputWindow;
  const int64_t pixels = Pixels(adjoint ? g.image : g.output);
  const int64_t unit = s.tiles / g.batch;
  const int64_t most = VectorsOf(target) * kLanes;
  for (int64_t t = first; t < last; ++t) {
    int64_t image;
    const Window w = window(g, t, &image);
    float* to = y + image * pixels * s.exact_width;
    if (adjoint && t % unit == 0) {
      for (int64_t i = 0; i < pixels; ++i) {
        float* pixel = to + i * s.exact_width;
        for (int64_t f = first_f; f < last_f; ++f) pixel[f] = 0;
      }
    }
    for (int64_t f = first_f; f < last_f; f += most) {
      const int64_t count = Min(most, last_f - f);
      RunIntoTile(
          target,
          PackedSource(First(target),
                       spectra + (t - first) * row + f - first_f, plane),
          w, bias ? bias + f : nullptr, adjoint, s.exact_width, count,
          RoundUp(count, kLanes) / kLanes, to + f, scratch);
    }
  }
}

void Forward(const Geometry& g, bool adjoint, const Program& source,
             const Program& target, const float* x, const float* spectrum,
             const float* bias, float* y, float* scratch, Pool& pool) {
  const Sizes s(g, adjoint);
  const auto from_window = adjoint ? OutputWindow : InputWindow;
  const BlockSizes sizes(g, s);
  // Tiles that overlap in the result belong to one worker.
  const int64_t unit = adjoint ? s.tiles / g.batch : 1;
  const int64_t workers = Min(pool.threads(), s.tiles / unit);
  InParallel(pool, workers, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* from = scratch + worker * ForwardScratchOfOne(g, adjoint, source,
                                                           target);
      float* to = from + g.points * sizes.from_plane;
      float* mine = to + g.points * sizes.to_plane;
      const int64_t stop = s.tiles / unit * (worker + 1) / workers * unit;
      int64_t first = s.tiles / unit * worker / workers * unit;
      while (first < stop) {
        const int64_t tiles = Min(sizes.tiles, stop - first);
        for (int64_t c = 0; c < s.exact_depth; c += sizes.depth) {
          const int64_t depth = Min(sizes.depth, s.exact_depth - c);
          TransformTiles(g, source, from_window, x, s.exact_depth, c,
                         c + depth, first, first + tiles, sizes.row,
                         sizes.from_plane, from, mine);
          for (int64_t p = 0; p < g.points; ++p) {
            Multiply(tiles, s.panels, depth, from + p * sizes.from_plane,
                     sizes.row, 1,
                     spectrum + p * s.SpectrumPlane() + c * kPanel,
                     s.exact_depth, to + p * sizes.to_plane, s.width, c > 0);
          }
        }
        Finish(g, s, target, adjoint, to, sizes.to_plane, s.width, first,
               first + tiles, 0, s.exact_width, bias, y, mine);
        first += tiles;
      }
    }
  });
}

#include "custom_ops/bilinear/parts_impl.h"
#include "custom_ops/bilinear/panels_impl.h"
#include "custom_ops/bilinear/gradient_impl.h"

}  // namespace

extern const Passes kPasses = {
    NAME,           SpectrumSize,    SpectrumScratch, ForwardScratch,
    PartsScratch,   GradientScratch, Spectrum,        Forward,
    ForwardByParts, Gradient,
};

}  // namespace ISA
}  // namespace bilinear
}  // namespace tf_convpar
