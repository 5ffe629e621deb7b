// Loops over a block's values, for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_BLOCKS_BLOCKS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_BLOCKS_BLOCKS_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/blocks/kernels.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_UNFUSED)
namespace tf_convpar {
namespace blocks {
namespace {

using simd::kLanes;
using simd::Load;
using simd::Vector;

// The largest absolute value; not a number where one of them is not finite.
inline float Largest(const float* values) {
  Vector most = {}, finite = {};
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const Vector v = Load(values + i);
    const Vector a = v < 0.0f ? -v : v;
    most = a > most ? a : most;
    finite += v * 0.0f;
  }
  float largest = 0.0f, none = 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    largest = std::max(largest, most[lane]);
    none += finite[lane];
  }
  return largest + none;
}

void Encode(int bits, const float* values, const float* less, const float* left,
            int64_t count, uint8_t* __restrict numbers, float* scale,
            float* rest) {
  // What is added to a number below 2^22 and taken away again rounds it to the
  // nearest whole one, and to the even one where two are as near.
  constexpr float kRounds = 12582912.0f;
  alignas(64) float exact[kBlock];
  alignas(64) int32_t whole[kBlock];
  for (int64_t i = 0; i < count; ++i) exact[i] = values[i];
  if (less != nullptr) {
    for (int64_t i = 0; i < count; ++i) exact[i] -= less[i];
  }
  if (left != nullptr) {
    for (int64_t i = 0; i < count; ++i) exact[i] += left[i];
  }
  std::fill(exact + count, exact + kBlock, 0.0f);
  const float most = bits == 8 ? 127.0f : 7.0f;
  const float largest = Largest(exact);
  *scale = largest / most;
  const bool finite = largest - largest == 0.0f;
  const float divisor = finite && *scale != 0.0f ? *scale : 1.0f;
  for (int64_t i = 0; i < kBlock; ++i) {
    const float scaled = finite ? exact[i] / divisor : 0.0f;
    whole[i] = static_cast<int32_t>((scaled + kRounds) - kRounds);
  }
  if (rest != nullptr) {
    // In a loop by itself, so that no compiler fuses it with the difference.
    alignas(64) float decoded[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      decoded[i] = static_cast<float>(whole[i]) * *scale;
    }
    for (int64_t i = 0; i < count; ++i) rest[i] = exact[i] - decoded[i];
  }
  if (bits == 8) {
    for (int64_t i = 0; i < kBlock; ++i) {
      numbers[i] = static_cast<uint8_t>(whole[i]);
    }
  } else {
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      numbers[i] = static_cast<uint8_t>((whole[2 * i] & 15) |
                                        (whole[2 * i + 1] & 15) << 4);
    }
  }
}

void Decode(int bits, const uint8_t* numbers, float scale, int64_t count,
            const float* added, float* values) {
  alignas(64) float decoded[kBlock];
  if (bits == 8) {
    for (int64_t i = 0; i < kBlock; ++i) {
      decoded[i] = static_cast<float>(static_cast<int8_t>(numbers[i])) * scale;
    }
  } else {
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      // The upper half's sign is the byte's; the lower half is brought there.
      const auto low = static_cast<int8_t>(numbers[i] << 4);
      const auto high = static_cast<int8_t>(numbers[i]);
      decoded[2 * i] = static_cast<float>(low >> 4) * scale;
      decoded[2 * i + 1] = static_cast<float>(high >> 4) * scale;
    }
  }
  if (added != nullptr) {
    for (int64_t i = 0; i < count; ++i) values[i] = added[i] + decoded[i];
  } else {
    std::copy(decoded, decoded + count, values);
  }
}

constexpr Kernels kKernels = {Encode, Decode};

}  // namespace
}  // namespace blocks
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_BLOCKS_BLOCKS_IMPL_H_
