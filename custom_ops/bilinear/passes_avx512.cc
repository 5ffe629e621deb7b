// The passes for AVX-512.

#include <cstdint>

#include "custom_ops/bilinear/passes.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma")
#define ISA avx512
#define NAME "avx512"
#define LANES 16
#define ROWS 14
#include "custom_ops/bilinear/passes_impl.h"
#pragma GCC pop_options
#endif
