// What each thread of a GPU does of the moves. It compiles for a processor as
// well, where tests run it: threads know nothing of one another.

#ifndef TF_CONVPAR_CUSTOM_OPS_CUDA_MOVE_H_
#define TF_CONVPAR_CUSTOM_OPS_CUDA_MOVE_H_

#include <cstdint>
#include <type_traits>

#include "custom_ops/cuda/moves.h"
#include "custom_ops/cuda/numbers.h"

namespace tf_convpar {
namespace cuda {

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T numbers[kWidth];
};

// A block's part of a piece.
struct Part {
  int64_t above;  // rows of the bands before its own
  int64_t begin;  // the first of its vectors in its band
  int count;      // of vectors
};

TF_CONVPAR_HOST_DEVICE inline Part PartOf(const Moves& moves,
                                          const Piece& piece, int64_t band,
                                          int64_t block, int64_t cols) {
  const int64_t above = band * moves.band;
  const int64_t below = moves.outer - above;
  const int64_t rows = below < moves.band ? below : moves.band;
  const int64_t begin = (block - piece.block) * kBlockVectors;
  const int64_t left = rows * cols - begin;
  return {above, begin,
          left < kBlockVectors ? static_cast<int>(left)
                               : static_cast<int>(kBlockVectors)};
}

template <Direction kDirection, typename Whole, typename Shard, int kWidth>
TF_CONVPAR_HOST_DEVICE void MoveVectors(const Moves& moves, const Piece& piece,
                                        int64_t band, int64_t block,
                                        int thread) {
  constexpr bool kJoins = kDirection == Direction::kJoin;
  using From = std::conditional_t<kJoins, Shard, Whole>;
  using To = std::conditional_t<kJoins, Whole, Shard>;
  const int64_t cols = piece.size / kWidth, stride = moves.row / kWidth;
  const Part part = PartOf(moves, piece, band, block, cols);
  auto* const whole =
      reinterpret_cast<Vector<Whole, kWidth>*>(
          moves.whole + piece.start * static_cast<int64_t>(sizeof(Whole))) +
      part.above * stride + part.begin;
  auto* const shard = reinterpret_cast<Vector<Shard, kWidth>*>(piece.data) +
                      part.above * cols + part.begin;
  // Between the end of a shard's row and the next in the joined tensor.
  const auto gap = static_cast<uint32_t>(stride - cols);
  const auto place = [&](int i) {
    return i + static_cast<int>(RowOf(part.begin + i, piece.reciprocal) * gap);
  };

  // All loads are under way before the first store waits for one.
  Vector<From, kWidth> loaded[kVectors];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int k = 0; k < kVectors; ++k) {
    const int i = k * kThreads + thread;
    if (i >= part.count) break;
    if constexpr (kJoins) {
      loaded[k] = shard[i];
    } else {
      loaded[k] = whole[place(i)];
    }
  }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int k = 0; k < kVectors; ++k) {
    const int i = k * kThreads + thread;
    if (i >= part.count) break;
    Vector<To, kWidth> stored;
    for (int n = 0; n < kWidth; ++n) {
      stored.numbers[n] = Converted<To>(loaded[k].numbers[n]);
    }
    if constexpr (kJoins) {
      whole[place(i)] = stored;
    } else {
      shard[i] = stored;
    }
  }
}

// Moves numbers that no vector of both sides has together: they are loaded one
// by one, which the cache makes up for, and stored by the vector, since nothing
// makes up for small stores.
template <Direction kDirection, typename Whole, typename Shard>
TF_CONVPAR_HOST_DEVICE void MoveNumbers(const Moves& moves, const Piece& piece,
                                        int64_t band, int64_t block,
                                        int thread) {
  constexpr bool kJoins = kDirection == Direction::kJoin;
  using From = std::conditional_t<kJoins, Shard, Whole>;
  using To = std::conditional_t<kJoins, Whole, Shard>;
  constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(To));
  const int64_t cols = ColsOf(moves, piece);
  const Part part = PartOf(moves, piece, band, block, cols);
  auto* const whole = reinterpret_cast<Whole*>(moves.whole) + piece.start;
  auto* const shard = reinterpret_cast<Shard*>(piece.data);
  for (int k = 0; k < kVectors; ++k) {
    const int i = k * kThreads + thread;
    if (i >= part.count) break;
    const int64_t vector = part.begin + i;
    const int64_t row_in_band = RowOf(vector, piece.reciprocal);
    const int64_t row = part.above + row_in_band;
    const From* from;
    To* to;
    if constexpr (kJoins) {
      from = shard + row * piece.size;
      to = whole + row * moves.row;
    } else {
      from = whole + row * moves.row;
      to = shard + row * piece.size;
    }
    // How far its row begins behind the start of an aligned vector.
    const auto skipped =
        static_cast<int>(reinterpret_cast<uintptr_t>(to) / sizeof(To) % kWidth);
    const int64_t first = (vector - row_in_band * cols) * kWidth - skipped;
    if (first >= 0 && first + kWidth <= piece.size) {
      Vector<To, kWidth> stored;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int n = 0; n < kWidth; ++n) {
        stored.numbers[n] = Converted<To>(from[first + n]);
      }
      *reinterpret_cast<Vector<To, kWidth>*>(to + first) = stored;
      continue;
    }
    for (int n = 0; n < kWidth; ++n) {
      if (first + n >= 0 && first + n < piece.size) {
        to[first + n] = Converted<To>(from[first + n]);
      }
    }
  }
}

template <Direction kDirection, typename Whole, typename Shard>
TF_CONVPAR_HOST_DEVICE void MovePiece(const Moves& moves, const Piece& piece,
                                      int64_t band, int64_t block, int thread) {
  // Numbers of the wider type in a vector, at most.
  constexpr int kMost =
      kVectorBytes /
      (sizeof(Whole) > sizeof(Shard) ? sizeof(Whole) : sizeof(Shard));
  if constexpr (kMost >= 8) {
    if (piece.width == 8) {
      return MoveVectors<kDirection, Whole, Shard, 8>(moves, piece, band, block,
                                                      thread);
    }
  }
  if constexpr (kMost >= 4) {
    if (piece.width == 4) {
      return MoveVectors<kDirection, Whole, Shard, 4>(moves, piece, band, block,
                                                      thread);
    }
  }
  if (piece.width == 2) {
    return MoveVectors<kDirection, Whole, Shard, 2>(moves, piece, band, block,
                                                    thread);
  }
  MoveNumbers<kDirection, Whole, Shard>(moves, piece, band, block, thread);
}

// Moves the share of one thread of one block.
template <Direction kDirection, typename Whole>
TF_CONVPAR_HOST_DEVICE void MoveShare(const Moves& moves, int64_t block,
                                      int thread) {
  // Fewer than 2^31 blocks are launched, and 32 bits are divided faster.
  const int64_t band =
      static_cast<uint32_t>(block) / static_cast<uint32_t>(moves.blocks);
  block -= band * moves.blocks;
  int i = 0;
  while (i + 1 < moves.pieces && moves.piece[i + 1].block <= block) ++i;
  const Piece& piece = moves.piece[i];
  switch (piece.dtype) {
    case Dtype::kHalf:
      return MovePiece<kDirection, Whole, Half>(moves, piece, band, block,
                                                thread);
    case Dtype::kBfloat16:
      return MovePiece<kDirection, Whole, Bfloat16>(moves, piece, band, block,
                                                    thread);
    case Dtype::kFloat:
      return MovePiece<kDirection, Whole, float>(moves, piece, band, block,
                                                 thread);
    case Dtype::kDouble:
      return MovePiece<kDirection, Whole, double>(moves, piece, band, block,
                                                  thread);
  }
}

// Calls `run(std::integral_constant<Direction>, Whole())` of these moves.
template <typename Run>
void ForDtype(const Moves& moves, Run run) {
  const auto directed = [&](auto direction) {
    switch (moves.dtype) {
      case Dtype::kHalf:
        return run(direction, Half());
      case Dtype::kBfloat16:
        return run(direction, Bfloat16());
      case Dtype::kFloat:
        return run(direction, float());
      case Dtype::kDouble:
        return run(direction, double());
    }
  };
  if (moves.direction == Direction::kJoin) {
    directed(std::integral_constant<Direction, Direction::kJoin>());
  } else {
    directed(std::integral_constant<Direction, Direction::kCut>());
  }
}

}  // namespace cuda
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CUDA_MOVE_H_
