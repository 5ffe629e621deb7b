#include "custom_ops/bilinear/sizes.h"

#include <cstdint>

namespace tf_convpar {
namespace bilinear {
namespace {

// Floats: what a core keeps close, and what its nearest and its farthest cache
// hold.
constexpr int64_t kCache = 320 << 10;
constexpr int64_t kNear = 160 << 10;
constexpr int64_t kFar = 3 << 20;
// Of a spectrum of kernels that would not leave the caches anyway.
constexpr int64_t kSmall = 1 << 20;
// Channels at a time where the sums over them stay close.
constexpr int64_t kSome = 64;

// Rows a power of two apart would fall into the same few cache sets.
int64_t RowOf(int64_t width, int64_t lanes) {
  return RoundUp(width, lanes) + (width % 128 == 0 ? lanes : 0);
}

// Tiles transformed before they are multiplied. As many as a core keeps close
// if that is enough to make the reading of the spectrum of kernels cheap.
// `enough` and `many` count products that registers hold.
int64_t TilesPerBlock(const Sizes& s, int64_t rows, int64_t enough,
                      int64_t many) {
  int64_t tiles = kCache / (s.points * (s.depth + s.width));
  if (tiles < enough * rows) tiles = many * rows;
  tiles = Min(tiles, many * rows) / rows * rows;
  return Min(Max(tiles, rows), s.tiles);
}

// Equal parts of `all`, of at most `fit`.
int64_t PartOf(int64_t all, int64_t fit) {
  const int64_t parts = (all + Max(fit, 1) - 1) / Max(fit, 1);
  return (all + parts - 1) / parts;
}

// Two buffers to go back and forth between, and one for a tile at an edge.
int64_t ScratchOf(int64_t largest, const InstructionSet& set) {
  return 3 * BufferFloats(largest, set.lanes);
}

int64_t ScratchOfTiles(const Extent& extent, const InstructionSet& set) {
  return Max(ScratchOf(extent.image_largest, set),
             ScratchOf(extent.maps_largest, set));
}

int64_t ScratchOfAll(const Extent& extent, const InstructionSet& set) {
  return Max(ScratchOfTiles(extent, set),
             ScratchOf(extent.kernel_largest, set));
}

// Whether a block of `tiles` is all, and worth it; see `ForwardSizes`.
bool ByParts(const Sizes& s, int64_t tiles) {
  return s.tiles <= tiles && s.points * s.tiles * s.depth <= kFar &&
         s.points * s.exact_depth * s.exact_width > kSmall;
}

PartSizes Parts(const Sizes& s, const Extent& extent,
                const InstructionSet& set) {
  PartSizes part = {};
  part.depth = PartOf(s.exact_depth, kNear / (s.points * set.panel()));
  part.from_plane = Sizes::Plane(s.tiles, s.depth);
  part.kernel_plane = Sizes::Plane(part.depth, set.panel());
  part.to_plane = Sizes::Plane(s.tiles, set.panel());
  part.of_one = s.points * (part.kernel_plane + part.to_plane) +
                ScratchOfAll(extent, set);
  return part;
}

BlockSizes Block(const Sizes& s, int64_t tiles, const Extent& extent,
                 const InstructionSet& set) {
  BlockSizes block = {tiles, s.exact_depth, s.depth};
  // Many channels and few results: all channels of a useful number of tiles
  // would not stay close, but some of them do, beside the sums.
  const int64_t fit =
      kCache / (s.points * (kSome + s.width)) / set.rows * set.rows;
  if (s.points * tiles * (s.depth + s.width) > kCache && fit >= 2 * set.rows &&
      s.exact_depth >= 2 * kSome) {
    block.tiles = Min(fit, s.tiles);
    block.depth = block.row = kSome;
  }
  block.from_plane = Sizes::Plane(block.tiles, block.row);
  block.to_plane = Sizes::Plane(block.tiles, s.width);
  block.of_one = s.points * (block.from_plane + block.to_plane) +
                 ScratchOfTiles(extent, set);
  return block;
}

PanelSizes Panels(const Sizes& s, const Extent& extent,
                  const InstructionSet& set) {
  PanelSizes panel = {};
  const bool near = s.points * s.exact_depth * set.panel() <= kNear;
  const int64_t fit = Max(3 * set.rows, kNear / (s.points * set.panel()));
  panel.tiles = near ? PartOf(s.tiles, fit) : s.tiles;
  panel.x_plane = Sizes::Plane(s.tiles, s.depth);
  panel.y_plane = Sizes::Plane(panel.tiles, set.panel());
  panel.k_plane = Sizes::Plane(s.exact_depth, set.panel());
  panel.of_one =
      s.points * (panel.y_plane + panel.k_plane) + ScratchOfAll(extent, set);
  return panel;
}

}  // namespace

Extent ExtentOf(const Pass& pass, int threads) {
  return {pass.geometry.points, pass.geometry.total_tiles(),
          pass.depth(),         pass.width(),
          pass.image.largest,   pass.maps.largest,
          pass.kernel.largest,  threads};
}

bool ReadsAlongAxis(const Program& program, const int64_t (&count)[kAxes]) {
  const Stage& stage = program.stages[0];
  const bool columns = stage.inner == 1 && stage.cols == count[2];
  const bool rows = stage.outer == 1 && stage.inner == count[2];
  return count[0] == 1 && (columns || rows);
}

bool WritesAlongAxis(const Program& program, const int64_t (&count)[kAxes]) {
  const Stage& stage = program.stages[program.num_stages - 1];
  return count[0] == 1 && stage.inner == 1 && stage.rows == count[2];
}

Sizes::Sizes(const Extent& extent, const InstructionSet& set)
    : points(extent.points),
      tiles(extent.tiles),
      threads(extent.threads),
      exact_depth(extent.channels),
      exact_width(extent.filters),
      depth(RowOf(exact_depth, set.lanes)),
      width(RoundUp(exact_width, set.panel())),
      panels(width / set.panel()) {}

ForwardSizes::ForwardSizes(const Extent& extent, const InstructionSet& set,
                           bool remember)
    : common(extent, set),
      part(),
      block(),
      of_kernel_program(ScratchOf(extent.kernel_largest, set)),
      spectrum_plane(0),
      spectrum(0) {
  const Sizes& s = common;
  const int64_t tiles = TilesPerBlock(s, set.rows, 3, 32);
  by_parts = !remember && ByParts(s, tiles);
  if (by_parts) {
    part = Parts(s, extent, set);
    scratch = s.points * part.from_plane + s.threads * part.of_one;
    return;
  }
  block = Block(s, tiles, extent, set);
  spectrum_plane = Sizes::Plane(s.panels * s.exact_depth, set.panel());
  spectrum = s.points * spectrum_plane;
  // It is made before the tiles are.
  scratch = s.threads * Max(of_kernel_program, block.of_one);
}

GradientSizes::GradientSizes(const Extent& extent, const InstructionSet& set)
    : common(extent, set),
      panel(),
      by_parts(false),
      apart(false),
      tiles(TilesPerBlock(common, set.rows, 8, 24)),
      rows(extent.channels) {
  const Sizes& s = common;
  by_panels = s.points * s.tiles * s.depth <= kFar &&
              s.points * s.tiles * s.width > kFar && s.panels >= s.threads;
  if (!by_panels) by_parts = ByParts(s, tiles);
  if (by_parts) {
    const int64_t each = (s.exact_depth + s.threads - 1) / s.threads;
    rows = PartOf(each, kFar / (s.points * s.width));
  }
  x_plane = Sizes::Plane(tiles, s.depth);
  y_plane = Sizes::Plane(tiles, s.width);
  k_plane = Sizes::Plane(rows, s.width);
  of_tiles = s.points * (x_plane + y_plane);
  of_kernel = s.points * k_plane;
  if (!by_panels && !by_parts) {
    apart = s.threads > 1 && of_kernel <= kFar / s.threads;
  }
  tile_copies = apart ? s.threads : 1;
  kernel_copies = apart || by_parts ? s.threads : 1;
  of_one = tiles * set.rows + 2 * set.lanes + ScratchOfAll(extent, set);
  scratch =
      tile_copies * of_tiles + kernel_copies * of_kernel + s.threads * of_one;
  if (by_panels) {
    panel = Panels(s, extent, set);
    scratch = s.points * panel.x_plane + s.threads * panel.of_one;
  }
}

}  // namespace bilinear
}  // namespace tf_convpar
