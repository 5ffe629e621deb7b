// The passes for AVX2 and FMA.

#include <cstdint>

#include "custom_ops/bilinear/passes.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define NAME "avx2"
#define LANES 8
#define ROWS 6
#include "custom_ops/bilinear/passes_impl.h"
#pragma GCC pop_options
#endif
