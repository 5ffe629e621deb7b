// Conversion of runs of numbers, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_SIMD_CONVERSIONS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_SIMD_CONVERSIONS_IMPL_H_

#include <cstdint>

#include "Eigen/Core"
#include "custom_ops/simd/kernels.h"
#include "custom_ops/simd/vectors_impl.h"
#if defined(TF_CONVPAR_FUSED)
#include <immintrin.h>
#endif

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace simd {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using Eigen::numext::bit_cast;

// The loops, in the form a compiler turns into vector code: bit arithmetic
// without branches.

inline void ToFloat(const bfloat16* src, float* dst, int64_t n) {
  const auto* in = reinterpret_cast<const uint16_t*>(src);
  for (int64_t i = 0; i < n; ++i) {
    dst[i] = bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
  }
}

inline void FromFloat(const float* src, bfloat16* dst, int64_t n) {
  auto* out = reinterpret_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = bit_cast<uint32_t>(src[i]);
    // To nearest even: up by just under half, or by half where the last kept
    // bit is odd. A NaN could be carried into infinity, hence its own answer.
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    out[i] = static_cast<uint16_t>(nan ? 0x7fc0 : rounded);
  }
}

inline void ToFloat(const double* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}

inline void FromFloat(const float* src, double* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<double>(src[i]);
}

inline void ToFloat(const half* src, float* dst, int64_t n) {
  int64_t i = 0;
#if defined(TF_CONVPAR_FUSED)
  // Half has its own instructions, which compilers do not find by themselves.
  // Eight at a time are already as fast as memory.
  const auto* in = reinterpret_cast<const uint16_t*>(src);
  for (; i + 8 <= n; i += 8) {
    const auto bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(bits));
  }
  for (; i < n; ++i) dst[i] = _cvtsh_ss(in[i]);
#endif
  for (; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}

inline void FromFloat(const float* src, half* dst, int64_t n) {
  int64_t i = 0;
#if defined(TF_CONVPAR_FUSED)
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  auto* out = reinterpret_cast<uint16_t*>(dst);
  for (; i + 8 <= n; i += 8) {
    const auto bits = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bits);
  }
  for (; i < n; ++i) out[i] = _cvtss_sh(src[i], kNearestEven);
#endif
  for (; i < n; ++i) dst[i] = static_cast<half>(src[i]);
}

template <typename T>
void ToFloats(const void* src, void* dst, int64_t n) {
  ToFloat(static_cast<const T*>(src), static_cast<float*>(dst), n);
}

template <typename T>
void FromFloats(const void* src, void* dst, int64_t n) {
  FromFloat(static_cast<const float*>(src), static_cast<T*>(dst), n);
}

template <typename T>
constexpr Conversion kConversion = {ToFloats<T>, FromFloats<T>};

constexpr Conversions kConversions = {kConversion<half>, kConversion<bfloat16>,
                                      kConversion<double>};

}  // namespace
}  // namespace simd
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_SIMD_CONVERSIONS_IMPL_H_
