// Channels of an image in vectors, and what is compiled for which processor.

#ifndef TF_CONVPAR_CUSTOM_OPS_WINDOWS_LANES_H_
#define TF_CONVPAR_CUSTOM_OPS_WINDOWS_LANES_H_

#include <cstdint>
#include <cstring>

// Compiled for several instruction sets, of which the loader takes the widest
// that the processor has.
#if defined(__x86_64__) && defined(__GLIBC__)
#define CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE inline __attribute__((always_inline))

namespace tf_convpar {
namespace windows {

typedef float Lane __attribute__((vector_size(8 * sizeof(float))));

INLINE Lane Loaded(const float* p) {
  Lane v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

INLINE void Store(Lane v, float* p) { std::memcpy(p, &v, sizeof(v)); }

// Whether the processor has vectors of sixteen floats. Elsewhere compilers keep
// such vectors in memory.
inline bool HasSixteen() {
#if defined(__x86_64__) && defined(__GLIBC__)
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd");
#else
  return false;
#endif
}

// Some channels, as so many vectors of eight or sixteen floats.
template <int kLanes, int kFloats = 8>
struct Wide {
  typedef float Vector __attribute__((vector_size(kFloats * sizeof(float))));
  static constexpr int64_t kChannels = kFloats * kLanes;
  Vector lanes[kLanes];

  static INLINE Vector At(const float* p, int lane) {
    Vector v;
    std::memcpy(&v, p + kFloats * lane, sizeof(v));
    return v;
  }
  INLINE void Load(const float* p) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = At(p, l);
  }
  INLINE void Add(const float* p, const Wide& factor) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += At(p, l) * factor.lanes[l];
  }
  INLINE void Write(float* p) const {
    for (int l = 0; l < kLanes; ++l) {
      std::memcpy(p + kFloats * l, &lanes[l], sizeof(Vector));
    }
  }
  template <typename F>
  INLINE void Apply() {
    for (int l = 0; l < kLanes; ++l) lanes[l] = F::Value(lanes[l]);
  }
};

// What is left of them, one at a time.
struct Narrow {
  static constexpr int64_t kChannels = 1;
  float lane;

  INLINE void Load(const float* p) { lane = *p; }
  INLINE void Add(const float* p, const Narrow& factor) {
    lane += *p * factor.lane;
  }
  INLINE void Write(float* p) const { *p = lane; }
  template <typename F>
  INLINE void Apply() {
    lane = F::Value(lane - Lane{})[0];
  }
};

}  // namespace windows
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_WINDOWS_LANES_H_
