// The four dtypes and their conversions, for a processor and for a GPU.

#ifndef TF_CONVPAR_CUSTOM_OPS_CUDA_NUMBERS_H_
#define TF_CONVPAR_CUSTOM_OPS_CUDA_NUMBERS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define TF_CONVPAR_HOST_DEVICE __host__ __device__
#else
#define TF_CONVPAR_HOST_DEVICE
#endif

namespace tf_convpar {
namespace cuda {

enum class Dtype : uint8_t { kHalf, kBfloat16, kFloat, kDouble };

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

TF_CONVPAR_HOST_DEVICE inline int64_t BytesOf(Dtype dtype) {
  return dtype == Dtype::kDouble ? 8 : dtype == Dtype::kFloat ? 4 : 2;
}

template <typename To, typename From>
TF_CONVPAR_HOST_DEVICE inline To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

TF_CONVPAR_HOST_DEVICE inline float ToFloat(Bfloat16 x) {
  return BitsAs<float>(static_cast<uint32_t>(x.bits) << 16);
}

TF_CONVPAR_HOST_DEVICE inline float ToFloat(float x) { return x; }

TF_CONVPAR_HOST_DEVICE inline float ToFloat(double x) {
  return static_cast<float>(x);
}

TF_CONVPAR_HOST_DEVICE inline float ToFloat(Half x) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(x.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t bits = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  if (bits >= 0x0f800000) {
    // Infinite, or no number: that is made a quiet one.
    const uint32_t quiet = bits > 0x0f800000 ? 0x400000 : 0;
    return BitsAs<float>(sign | bits | quiet | 0x70000000);
  }
  if (bits < 0x00800000) {
    // Multiples of 2^-24, all below 2^-14: next to it floats are as wide apart.
    const float small = BitsAs<float>(bits + 0x38800000) - 0x1p-14f;
    return BitsAs<float>(sign | BitsAs<uint32_t>(small));
  }
  return BitsAs<float>(sign | (bits + 0x38000000));
#endif
}

// The number of a type that is nearest to a float; of two the even one.
template <typename To>
TF_CONVPAR_HOST_DEVICE inline To FromFloat(float x) {
  if constexpr (std::is_same_v<To, Bfloat16>) {
    // As in kernels/convert.cc.
    const auto bits = BitsAs<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(nan ? 0x7fc0 : rounded)};
  } else if constexpr (std::is_same_v<To, Half>) {
#if defined(__CUDA_ARCH__)
    return {__half_as_ushort(__float2half_rn(x))};
#else
    const auto all = BitsAs<uint32_t>(x);
    const uint32_t sign = (all >> 16) & 0x8000, bits = all & 0x7fffffff;
    uint32_t found;
    if (bits > 0x7f800000) {
      found = 0x7e00 | ((bits >> 13) & 0x3ff);
    } else if (bits >= 0x477ff000) {  // 65520 and above are infinite
      found = 0x7c00;
    } else if (bits < 0x38800000) {
      // Below 2^-14 halves are multiples of 2^-24, as floats above 0.5 are.
      found = BitsAs<uint32_t>(BitsAs<float>(bits) + 0.5f) - 0x3f000000;
    } else {
      found = (bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13;
    }
    return {static_cast<uint16_t>(sign | found)};
#endif
  } else {
    return static_cast<To>(x);
  }
}

// As tf.cast converts: through float where neither type is float.
template <typename To, typename From>
TF_CONVPAR_HOST_DEVICE inline To Converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else {
    return FromFloat<To>(ToFloat(x));
  }
}

}  // namespace cuda
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CUDA_NUMBERS_H_
