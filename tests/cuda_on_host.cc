// The kernels for GPUs on this processor: thread by thread, block by block.

#include <immintrin.h>

#include <cstdint>
#include <vector>

#include "custom_ops/cuda/move.h"
#include "custom_ops/cuda/moves.h"
#include "custom_ops/cuda/numbers.h"

using namespace tf_convpar::cuda;

// Joins `pieces` shards to `whole`, or cuts it. `sizes` are numbers per row.
// Returns the number of launches.
extern "C" int Move(int direction, char* whole, int dtype, int64_t outer,
                    int pieces, char** data, const int64_t* sizes,
                    const int* dtypes) {
  Moves moves;
  moves.whole = whole;
  moves.outer = outer;
  moves.row = 0;
  moves.direction = static_cast<Direction>(direction);
  moves.dtype = static_cast<Dtype>(dtype);
  std::vector<Piece> all;
  for (int i = 0; i < pieces; ++i) {
    if (sizes[i] == 0) continue;
    Piece piece;
    piece.data = data[i];
    piece.start = moves.row;
    piece.size = sizes[i];
    piece.dtype = static_cast<Dtype>(dtypes[i]);
    all.push_back(piece);
    moves.row += sizes[i];
  }
  // Numbers below the least normal one are 0, as in TensorFlow's threads.
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  int launches = 0;
  ForEachTable(moves, all, [&](const Moves& table) {
    ++launches;
    ForDtype(table, [&](auto direction, auto whole) {
      for (int64_t block = 0; block < BlocksOf(table); ++block) {
        for (int thread = 0; thread < kThreads; ++thread) {
          MoveShare<decltype(direction)::value, decltype(whole)>(table, block,
                                                                 thread);
        }
      }
    });
  });
  _mm_setcsr(before);
  return launches;
}
