#include "custom_ops/kernels/convert.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"
#include "custom_ops/simd/kernels.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using Eigen::bfloat16;
using Eigen::half;

template <typename T>
const simd::Conversion& Of() {
  const simd::Conversions& all = simd::Best().conversions;
  if (std::is_same_v<T, half>) return all.of_half;
  if (std::is_same_v<T, bfloat16>) return all.of_bfloat16;
  return all.of_double;
}

template <typename T>
void Copy(const void* src, void* dst, int64_t n) {
  std::memcpy(dst, src, n * sizeof(T));
}

// Neither side is float: through a buffer that stays in the first cache.
template <typename From, typename To>
void ThroughFloat(const void* src, void* dst, int64_t n) {
  constexpr int64_t kBlock = 1024;
  float buffer[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min(kBlock, n - i);
    Of<From>().to_float(static_cast<const From*>(src) + i, buffer, m);
    Of<To>().from_float(buffer, static_cast<To*>(dst) + i, m);
  }
}

template <typename From, typename To>
ConvertFn Pair() {
  if (std::is_same_v<From, To>) return Copy<From>;
  if (std::is_same_v<From, float>) return Of<To>().from_float;
  if (std::is_same_v<To, float>) return Of<From>().to_float;
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
