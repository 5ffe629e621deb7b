// Conversion of runs of numbers between the four floating dtypes.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_CONVERT_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_CONVERT_H_

#include "custom_ops/simd/kernels.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {

using simd::ConvertFn;

// The fastest function this processor has for a pair of dtypes, each of half,
// bfloat16, float or double. It rounds as tf.cast does: to nearest even, and
// through float where neither side is float.
ConvertFn GetConvertFn(tensorflow::DataType from, tensorflow::DataType to);

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_CONVERT_H_
