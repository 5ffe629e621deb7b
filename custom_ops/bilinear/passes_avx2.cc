// The passes for AVX2 and FMA.

#include <cstdint>

#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define TF_CONVPAR_ISA avx2
#include "custom_ops/bilinear/passes_impl.h"
#pragma GCC pop_options
#endif
