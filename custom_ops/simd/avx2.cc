// The kernels for AVX2.

#if defined(__x86_64__)
#define TF_CONVPAR_SET avx2
#define TF_CONVPAR_UNFUSED "avx2"
#define TF_CONVPAR_FUSED "avx2,fma,f16c"
#include "custom_ops/simd/kernels_impl.h"
#endif
