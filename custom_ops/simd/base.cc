// The kernels for any processor.

#include "custom_ops/simd/kernels_impl.h"
