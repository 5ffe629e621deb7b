// How the passes cut their work and how much memory that takes, for any
// instruction set: what one needs can be asked where there is no such
// processor. The passes run by these sizes, and whoever plans reads the same.

#ifndef TF_CONVPAR_CUSTOM_OPS_BILINEAR_SIZES_H_
#define TF_CONVPAR_CUSTOM_OPS_BILINEAR_SIZES_H_

#include <cstdint>

#include "custom_ops/bilinear/pass.h"
#include "custom_ops/simd/instruction_set.h"

namespace tf_convpar {
namespace bilinear {

constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

using simd::InstructionSet;

// Vectors of channels that a program transforms together: those whose tiles
// the nearest caches hold. The last stage of a Fourier transform shares each
// of its few factors among them. `largest` is that of the program.
constexpr int64_t VectorsTogether(int64_t largest) {
  return Min(4, Max(1, 2048 / largest));
}

// Floats of the values of a stage.
constexpr int64_t BufferFloats(int64_t largest, int64_t lanes) {
  return largest * VectorsTogether(largest) * lanes;
}

// What memory depends on. `_workspace.py` has the same fields.
struct Extent {
  int64_t points;    // of the spectrum
  int64_t tiles;     // of all images
  int64_t channels;  // that products are summed over
  int64_t filters;   // of the result
  int64_t image_largest, maps_largest, kernel_largest;  // of the programs
  int64_t threads;
};

Extent ExtentOf(const Pass& pass, int threads);

// Whether the first stage of a program, which takes tiles of `count` pixels on
// each axis, works along one of the last two axes of tiles of one layer; and
// whether the last stage, which gives such tiles, works along the last axis.
// Only such stages read and write tiles where these are in an image.
bool ReadsAlongAxis(const Program& program, const int64_t (&count)[kAxes]);
bool WritesAlongAxis(const Program& program, const int64_t (&count)[kAxes]);

// What all passes share. Sizes are those in memory: spectra of tiles are
// [points, tiles of a block, depth or width], each point's plane an odd number
// of vectors apart, which keeps them out of one another's cache sets.
struct Sizes {
  Sizes(const Extent& extent, const InstructionSet& set);

  static int64_t Plane(int64_t rows, int64_t row) {
    return RoundUp(rows * row, 32) + 16;
  }

  int64_t points, tiles, threads;
  int64_t exact_depth, exact_width, depth, width;
  int64_t panels;
};

// A block of tiles whose products are summed over some channels at a time.
struct BlockSizes {
  int64_t tiles, depth, row, from_plane, to_plane;
  int64_t of_one;  // floats of each thread
};

// All tiles, for a panel of filters and some channels at a time.
struct PartSizes {
  int64_t depth, from_plane, kernel_plane, to_plane;
  int64_t of_one;  // floats of each thread
};

struct ForwardSizes {
  // To `remember` the kernels' spectrum it is made as a whole.
  ForwardSizes(const Extent& extent, const InstructionSet& set, bool remember);

  Sizes common;
  // Where all tiles are transformed at once, the spectrum of kernels is needed
  // once: it is then made, used and overwritten a part at a time, and never
  // leaves the caches. Not if it is too small to leave them anyway, or if the
  // spectra of tiles are so large that reading them once a part costs more.
  bool by_parts;
  PartSizes part;             // where by parts
  BlockSizes block;           // elsewhere
  int64_t of_kernel_program;  // scratch of one thread
  int64_t spectrum_plane;
  int64_t spectrum;  // floats of the kernels' as a whole; 0 by parts
  int64_t scratch;   // floats, beside that
};

// One panel of filters and some tiles at a time.
struct PanelSizes {
  int64_t tiles, x_plane, y_plane, k_plane;
  int64_t of_one;  // floats of each thread
};

struct GradientSizes {
  GradientSizes(const Extent& extent, const InstructionSet& set);

  Sizes common;
  // Where the spectra of images stay in the caches and those of the feature
  // maps, of many more channels, do not: each thread makes and uses the latter
  // a panel and a few tiles at a time.
  bool by_panels;
  PanelSizes panel;  // where by panels
  // Where one block holds all tiles, the kernel's spectrum is made and taken
  // back a few channels at a time; see `ForwardSizes`.
  bool by_parts;
  // Where the kernel's spectrum is small each thread has one of its own, and
  // tiles of its own: none waits for another, and none reads what another has
  // in its caches, before the sum.
  bool apart;
  int64_t tiles;  // of a block
  int64_t rows;   // channels at a time
  int64_t x_plane, y_plane, k_plane;
  int64_t of_tiles;   // floats of a block's spectra
  int64_t of_kernel;  // and of the kernel's, or of a part of it
  int64_t tile_copies, kernel_copies;  // how many there are of each
  int64_t of_one;   // floats of each thread: packed rows, a program's scratch
  int64_t scratch;  // floats in all
};

}  // namespace bilinear
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BILINEAR_SIZES_H_
