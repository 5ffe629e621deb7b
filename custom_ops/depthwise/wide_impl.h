// Channels of an image, several vectors at a time or one channel, for one
// instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_WIDE_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_WIDE_IMPL_H_

#include <cstdint>

#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_FUSED)
namespace tf_convpar {
namespace depthwise {
namespace {

using simd::Eight;

// So many vectors V of channels.
template <typename V, int kVectors = 1>
struct Wide {
  static constexpr int64_t kFloats = sizeof(V) / sizeof(float);
  static constexpr int64_t kChannels = kFloats * kVectors;
  V lanes[kVectors];

  TF_CONVPAR_INLINE void Load(const float* p) {
    for (int v = 0; v < kVectors; ++v) {
      lanes[v] = simd::Load<V>(p + kFloats * v);
    }
  }
  TF_CONVPAR_INLINE void Add(const float* p, const Wide& factor) {
    for (int v = 0; v < kVectors; ++v) {
      lanes[v] += simd::Load<V>(p + kFloats * v) * factor.lanes[v];
    }
  }
  TF_CONVPAR_INLINE void Write(float* p) const {
    for (int v = 0; v < kVectors; ++v) simd::Store(p + kFloats * v, lanes[v]);
  }
  template <typename F>
  TF_CONVPAR_INLINE void Apply() {
    for (int v = 0; v < kVectors; ++v) lanes[v] = F::Value(lanes[v]);
  }
};

// What is left of them, one at a time.
struct Narrow {
  static constexpr int64_t kChannels = 1;
  float lane;

  TF_CONVPAR_INLINE void Load(const float* p) { lane = *p; }
  TF_CONVPAR_INLINE void Add(const float* p, const Narrow& factor) {
    lane += *p * factor.lane;
  }
  TF_CONVPAR_INLINE void Write(float* p) const { *p = lane; }
  template <typename F>
  TF_CONVPAR_INLINE void Apply() {
    lane = F::Value(lane - Eight{})[0];
  }
};

}  // namespace
}  // namespace depthwise
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_DEPTHWISE_WIDE_IMPL_H_
