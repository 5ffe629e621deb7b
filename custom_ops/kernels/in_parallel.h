// One op's work by several threads.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_IN_PARALLEL_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_IN_PARALLEL_H_

#include <cstdint>
#include <functional>

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_convpar {

// Runs `run(begin, end)` for ranges of `total` units of so many cycles each, by
// the op's own thread and by those that TensorFlow gives to one op.
//
// The op's own thread begins at once and goes on as long as there are ranges.
// TensorFlow's ParallelFor hands all of them to other threads where there are
// more than threads, and sleeps until they are done.
//
// Ranges have at least so many units, for work that each begins with.
void InParallel(tensorflow::OpKernelContext* ctx, int64_t total, int64_t cycles,
                const std::function<void(int64_t, int64_t)>& run,
                int64_t least = 1);

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_IN_PARALLEL_H_
