// What a GPU is to move: a joined tensor on one side, its shards on the other.

#ifndef TF_CONVPAR_CUSTOM_OPS_CUDA_MOVES_H_
#define TF_CONVPAR_CUSTOM_OPS_CUDA_MOVES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/cuda/numbers.h"

namespace tf_convpar {
namespace cuda {

enum class Direction : uint8_t { kJoin, kCut };

// Threads of a block, and vectors that each of them writes.
inline constexpr int kThreads = 256;
inline constexpr int kVectors = 8;
inline constexpr int kBlockVectors = kThreads * kVectors;
// No load or store is of more bytes.
inline constexpr int64_t kVectorBytes = 16;
// Rows are moved in bands, which have so many numbers at most unless they are
// of one row. What a band reads and writes lies together, so that a line of
// memory which two of its blocks share is still in the cache for the second.
inline constexpr int64_t kBandNumbers = int64_t{1} << 16;
// With so many a table is within what every GPU takes as a kernel's argument,
// 4 KB: nothing has to be copied there before a launch.
inline constexpr int kMostPieces = 64;

struct Piece {
  char* data;
  int64_t start;  // of its numbers in a row of the joined tensor
  int64_t size;   // numbers per row, one or more
  int64_t block;  // the first of those blocks of threads that move it in a band
  uint32_t reciprocal;  // see RowOf
  Dtype dtype;
  uint8_t width;  // numbers of a vector: 2, 4 or 8; or 1, see ColsOf
};

struct Moves {
  char* whole;
  int64_t outer;   // rows
  int64_t row;     // numbers per row of the joined tensor
  int64_t band;    // rows of a band; the last may have fewer
  int64_t blocks;  // of threads for a band
  int pieces;
  Direction direction;
  Dtype dtype;
  Piece piece[kMostPieces];
};

static_assert(sizeof(Moves) <= 4096);

// The most numbers that go by one load and one store: the wider of both has 16
// bytes, and all vectors of both sides are aligned.
inline int WidthOf(const Moves& moves, const Piece& piece) {
  const int64_t wide = BytesOf(moves.dtype), narrow = BytesOf(piece.dtype);
  const auto fits = [&](int64_t n) {
    return piece.size % n == 0 && piece.start % n == 0 &&
           (moves.row % n == 0 || moves.outer == 1) &&
           reinterpret_cast<uintptr_t>(moves.whole) % (n * wide) == 0 &&
           reinterpret_cast<uintptr_t>(piece.data) % (n * narrow) == 0;
  };
  int64_t n = kVectorBytes / std::max(wide, narrow);
  while (!fits(n)) n /= 2;
  return static_cast<int>(n);
}

// Numbers of a vector of the side that is written.
TF_CONVPAR_HOST_DEVICE inline int64_t WrittenOf(Direction direction,
                                                Dtype whole, Dtype shard) {
  return kVectorBytes / BytesOf(direction == Direction::kJoin ? whole : shard);
}

// Vectors of a row of a piece, never more than its numbers. With a width of 1
// they are what is aligned where they are written: the first and the last may
// have numbers of other rows too.
TF_CONVPAR_HOST_DEVICE inline int64_t ColsOf(const Moves& moves,
                                             const Piece& piece) {
  if (piece.width > 1) return piece.size / piece.width;
  const int64_t most = WrittenOf(moves.direction, moves.dtype, piece.dtype);
  return (piece.size + most - 2) / most + 1;
}

// 2^31 / cols, rounded up; 0 for bands of one row. No band has 2^16 vectors or
// more, and no row of two or more 2^15 or more, so what rounding adds, less
// than cols / 2^31 for each vector, never adds up to one row.
inline uint32_t ReciprocalOf(const Moves& moves, int64_t cols) {
  if (moves.band == 1) return 0;
  return static_cast<uint32_t>(((int64_t{1} << 31) + cols - 1) / cols);
}

// The row of a band in which a vector of a shard is: `vector` / cols. Division
// would take as long as the move.
TF_CONVPAR_HOST_DEVICE inline uint32_t RowOf(int64_t vector,
                                             uint32_t reciprocal) {
  const auto in_band = static_cast<uint32_t>(vector);
  return (static_cast<uint64_t>(in_band) * reciprocal) >> 31;
}

// All bands' blocks of threads.
inline int64_t BlocksOf(const Moves& moves) {
  return moves.blocks * ((moves.outer + moves.band - 1) / moves.band);
}

// Adds a shard, whose data, start, size and dtype are given.
inline void AddPiece(Moves* moves, Piece piece) {
  piece.width = static_cast<uint8_t>(WidthOf(*moves, piece));
  piece.block = moves->blocks;
  const int64_t cols = ColsOf(*moves, piece);
  piece.reciprocal = ReciprocalOf(*moves, cols);
  const int64_t vectors = moves->band * cols;
  moves->blocks += (vectors + kBlockVectors - 1) / kBlockVectors;
  moves->piece[moves->pieces++] = piece;
}

// Calls `run(moves)` for all pieces, as few times as tables can hold them.
// `moves` has all that is no piece's.
template <typename Run>
void ForEachTable(Moves moves, const std::vector<Piece>& pieces, Run run) {
  if (pieces.empty()) return;
  const int64_t fit = (kBandNumbers - 1) / moves.row;
  moves.band = std::max<int64_t>(std::min(fit, moves.outer), 1);
  for (size_t i = 0; i < pieces.size();) {
    moves.pieces = 0;
    moves.blocks = 0;
    while (i < pieces.size() && moves.pieces < kMostPieces) {
      AddPiece(&moves, pieces[i++]);
    }
    run(moves);
  }
}

}  // namespace cuda
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CUDA_MOVES_H_
