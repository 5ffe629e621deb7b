#include "custom_ops/kernels/convert.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"
#include "tensorflow/core/framework/types.h"

// One wheel must run on unequal processors: each loop is compiled for several
// of them, and the choice is made when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__)
#define TF_CONVPAR_X86 1
#include <immintrin.h>
#define TF_CONVPAR_INLINE inline __attribute__((always_inline))
#else
#define TF_CONVPAR_X86 0
#define TF_CONVPAR_INLINE inline
#endif

namespace tf_convpar {
namespace {

using Eigen::bfloat16;
using Eigen::half;
using Eigen::numext::bit_cast;

template <typename T>
void Copy(const void* src, void* dst, int64_t n) {
  std::memcpy(dst, src, n * sizeof(T));
}

// The loops, in the form a compiler turns into vector code: bit arithmetic
// without branches.

TF_CONVPAR_INLINE void ToFloat(const bfloat16* src, float* dst, int64_t n) {
  const auto* in = reinterpret_cast<const uint16_t*>(src);
  for (int64_t i = 0; i < n; ++i) {
    dst[i] = bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
  }
}

TF_CONVPAR_INLINE void FromFloat(const float* src, bfloat16* dst, int64_t n) {
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

TF_CONVPAR_INLINE void ToFloat(const double* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}

TF_CONVPAR_INLINE void FromFloat(const float* src, double* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<double>(src[i]);
}

TF_CONVPAR_INLINE void ToFloat(const half* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}

TF_CONVPAR_INLINE void FromFloat(const float* src, half* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<half>(src[i]);
}

template <typename T>
void ToFloatAny(const void* src, void* dst, int64_t n) {
  ToFloat(static_cast<const T*>(src), static_cast<float*>(dst), n);
}

template <typename T>
void FromFloatAny(const void* src, void* dst, int64_t n) {
  FromFloat(static_cast<const float*>(src), static_cast<T*>(dst), n);
}

#if TF_CONVPAR_X86

#define TF_CONVPAR_AVX2 __attribute__((target("avx2,f16c")))
#define TF_CONVPAR_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx2,f16c")))

template <typename T>
TF_CONVPAR_AVX2 void ToFloatAvx2(const void* src, void* dst, int64_t n) {
  ToFloat(static_cast<const T*>(src), static_cast<float*>(dst), n);
}

template <typename T>
TF_CONVPAR_AVX2 void FromFloatAvx2(const void* src, void* dst, int64_t n) {
  FromFloat(static_cast<const float*>(src), static_cast<T*>(dst), n);
}

template <typename T>
TF_CONVPAR_AVX512 void ToFloatAvx512(const void* src, void* dst, int64_t n) {
  ToFloat(static_cast<const T*>(src), static_cast<float*>(dst), n);
}

template <typename T>
TF_CONVPAR_AVX512 void FromFloatAvx512(const void* src, void* dst, int64_t n) {
  FromFloat(static_cast<const float*>(src), static_cast<T*>(dst), n);
}

// Half has its own instructions, which compilers do not find by themselves.
template <>
TF_CONVPAR_AVX2 void ToFloatAvx2<half>(const void* src, void* dst, int64_t n) {
  const auto* in = static_cast<const uint16_t*>(src);
  auto* out = static_cast<float*>(dst);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(bits));
  }
  for (; i < n; ++i) out[i] = _cvtsh_ss(in[i]);
}

template <>
TF_CONVPAR_AVX2 void FromFloatAvx2<half>(const void* src, void* dst,
                                         int64_t n) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const auto* in = static_cast<const float*>(src);
  auto* out = static_cast<uint16_t*>(dst);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto bits = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bits);
  }
  for (; i < n; ++i) out[i] = _cvtss_sh(in[i], kNearestEven);
}

template <typename T>
ConvertFn ChooseToFloat() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    // Eight halves at a time are already as fast as memory.
    const bool wide = __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") &&
                      !std::is_same_v<T, half>;
    return wide ? ToFloatAvx512<T> : ToFloatAvx2<T>;
  }
  return ToFloatAny<T>;
}

template <typename T>
ConvertFn ChooseFromFloat() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    const bool wide = __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") &&
                      !std::is_same_v<T, half>;
    return wide ? FromFloatAvx512<T> : FromFloatAvx2<T>;
  }
  return FromFloatAny<T>;
}

#else

template <typename T>
ConvertFn ChooseToFloat() {
  return ToFloatAny<T>;
}

template <typename T>
ConvertFn ChooseFromFloat() {
  return FromFloatAny<T>;
}

#endif  // TF_CONVPAR_X86

template <typename T>
const ConvertFn kToFloat = ChooseToFloat<T>();
template <>
const ConvertFn kToFloat<float> = Copy<float>;

template <typename T>
const ConvertFn kFromFloat = ChooseFromFloat<T>();
template <>
const ConvertFn kFromFloat<float> = Copy<float>;

// Neither side is float: through a buffer that stays in the first cache.
template <typename From, typename To>
void ThroughFloat(const void* src, void* dst, int64_t n) {
  constexpr int64_t kBlock = 1024;
  float buffer[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min(kBlock, n - i);
    kToFloat<From>(static_cast<const From*>(src) + i, buffer, m);
    kFromFloat<To>(buffer, static_cast<To*>(dst) + i, m);
  }
}

template <typename From, typename To>
ConvertFn Pair() {
  if (std::is_same_v<From, To>) return Copy<From>;
  if (std::is_same_v<From, float>) return kFromFloat<To>;
  if (std::is_same_v<To, float>) return kToFloat<From>;
  return ThroughFloat<From, To>;
}

template <typename From>
ConvertFn PairFor(tensorflow::DataType to) {
  switch (to) {
    case tensorflow::DT_HALF:
      return Pair<From, half>();
    case tensorflow::DT_BFLOAT16:
      return Pair<From, bfloat16>();
    case tensorflow::DT_FLOAT:
      return Pair<From, float>();
    default:
      return Pair<From, double>();
  }
}

}  // namespace

ConvertFn GetConvertFn(tensorflow::DataType from, tensorflow::DataType to) {
  switch (from) {
    case tensorflow::DT_HALF:
      return PairFor<half>(to);
    case tensorflow::DT_BFLOAT16:
      return PairFor<bfloat16>(to);
    case tensorflow::DT_FLOAT:
      return PairFor<float>(to);
    default:
      return PairFor<double>(to);
  }
}

}  // namespace tf_convpar
