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

// Where a vector lies in the joined tensor, counted in vectors: `skip` vectors
// of a shard, fewer than kBlockVectors, after that in `row` and `col`. A row of
// the shard has `cols` vectors, one of the joined tensor has `stride`.
TF_CONVPAR_HOST_DEVICE inline int64_t PlaceOf(int64_t row, int64_t col,
                                              int skip, int64_t cols,
                                              int64_t stride) {
  col += skip;
  if (col >= cols) {
    if (cols >= kBlockVectors) {
      ++row;
      col -= cols;
    } else {
      // Division of 64 bits would take as long as the move.
      const auto all = static_cast<uint32_t>(col);
      const auto part = static_cast<uint32_t>(cols);
      row += all / part;
      col = all % part;
    }
  }
  return row * stride + col;
}

template <Direction kDirection, typename Whole, typename Shard, int kWidth>
TF_CONVPAR_HOST_DEVICE void MoveVectors(const Moves& moves, const Piece& piece,
                                        int64_t block, int thread) {
  constexpr bool kJoins = kDirection == Direction::kJoin;
  using From = std::conditional_t<kJoins, Shard, Whole>;
  using To = std::conditional_t<kJoins, Whole, Shard>;
  auto* const whole = reinterpret_cast<Vector<Whole, kWidth>*>(
      moves.whole + piece.start * static_cast<int64_t>(sizeof(Whole)));
  auto* const shard = reinterpret_cast<Vector<Shard, kWidth>*>(piece.data);
  const int64_t cols = piece.size / kWidth, stride = moves.row / kWidth;
  const int64_t begin = (block - piece.block) * kBlockVectors;
  const int64_t left = moves.outer * cols - begin;
  const int64_t row = begin / cols, col = begin % cols;

  // All loads are under way before the first store waits for one.
  Vector<From, kWidth> loaded[kVectors];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int i = 0; i < kVectors; ++i) {
    const int skip = i * kThreads + thread;
    if (skip >= left) break;
    if constexpr (kJoins) {
      loaded[i] = shard[begin + skip];
    } else {
      loaded[i] = whole[PlaceOf(row, col, skip, cols, stride)];
    }
  }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int i = 0; i < kVectors; ++i) {
    const int skip = i * kThreads + thread;
    if (skip >= left) break;
    Vector<To, kWidth> stored;
    for (int k = 0; k < kWidth; ++k) {
      stored.numbers[k] = Converted<To>(loaded[i].numbers[k]);
    }
    if constexpr (kJoins) {
      whole[PlaceOf(row, col, skip, cols, stride)] = stored;
    } else {
      shard[begin + skip] = stored;
    }
  }
}

template <Direction kDirection, typename Whole, typename Shard>
TF_CONVPAR_HOST_DEVICE void MovePiece(const Moves& moves, const Piece& piece,
                                      int64_t block, int thread) {
  // Numbers of the wider type in a vector, at most.
  constexpr int kMost =
      kVectorBytes /
      (sizeof(Whole) > sizeof(Shard) ? sizeof(Whole) : sizeof(Shard));
  if constexpr (kMost >= 8) {
    if (piece.width == 8) {
      return MoveVectors<kDirection, Whole, Shard, 8>(moves, piece, block,
                                                      thread);
    }
  }
  if constexpr (kMost >= 4) {
    if (piece.width == 4) {
      return MoveVectors<kDirection, Whole, Shard, 4>(moves, piece, block,
                                                      thread);
    }
  }
  if (piece.width == 2) {
    return MoveVectors<kDirection, Whole, Shard, 2>(moves, piece, block,
                                                    thread);
  }
  MoveVectors<kDirection, Whole, Shard, 1>(moves, piece, block, thread);
}

// Moves the share of one thread of one block.
template <Direction kDirection, typename Whole>
TF_CONVPAR_HOST_DEVICE void MoveShare(const Moves& moves, int64_t block,
                                      int thread) {
  int i = 0;
  while (i + 1 < moves.pieces && moves.piece[i + 1].block <= block) ++i;
  const Piece& piece = moves.piece[i];
  switch (piece.dtype) {
    case Dtype::kHalf:
      return MovePiece<kDirection, Whole, Half>(moves, piece, block, thread);
    case Dtype::kBfloat16:
      return MovePiece<kDirection, Whole, Bfloat16>(moves, piece, block,
                                                    thread);
    case Dtype::kFloat:
      return MovePiece<kDirection, Whole, float>(moves, piece, block, thread);
    case Dtype::kDouble:
      return MovePiece<kDirection, Whole, double>(moves, piece, block, thread);
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
