// The way from code that a C++ compiler makes to kernels that nvcc makes.

#ifndef TF_CONVPAR_CUSTOM_OPS_CUDA_LAUNCH_H_
#define TF_CONVPAR_CUSTOM_OPS_CUDA_LAUNCH_H_

#include "custom_ops/cuda/moves.h"

namespace tf_convpar {
namespace cuda {

// Puts the moves on a stream of the current device, a cudaStream_t, in one
// launch. Returns null, or what CUDA says is wrong.
const char* Launch(const Moves& moves, void* stream);

}  // namespace cuda
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CUDA_LAUNCH_H_
