#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "custom_ops/cuda/launch.h"
#include "custom_ops/cuda/move.h"
#include "custom_ops/cuda/moves.h"

namespace tf_convpar {
namespace cuda {
namespace {

// The table stays where arguments are: __grid_constant__ says that no thread
// needs a copy of its own.
template <Direction kDirection, typename Whole>
__global__ void __launch_bounds__(kThreads)
    MoveKernel(const __grid_constant__ Moves moves) {
  MoveShare<kDirection, Whole>(moves, blockIdx.x, threadIdx.x);
}

}  // namespace

const char* Launch(const Moves& moves, void* stream) {
  const int64_t blocks = BlocksOf(moves);
  if (blocks == 0) return nullptr;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return "more numbers than one launch can move";
  }
  ForDtype(moves, [&](auto direction, auto whole) {
    MoveKernel<decltype(direction)::value, decltype(whole)>
        <<<static_cast<uint32_t>(blocks), kThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(moves);
  });
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace cuda
}  // namespace tf_convpar
