// The kernels for AVX-512.

#if defined(__x86_64__)
#define TF_CONVPAR_SET avx512
#define TF_CONVPAR_UNFUSED "avx512f"
#define TF_CONVPAR_FUSED "avx512f,avx512vl,avx512dq,avx512bw,fma,f16c"
#include "custom_ops/simd/kernels_impl.h"
#endif
