// Channels in vectors, and loops over them for several processors.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_LANES_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_LANES_H_

#include <cstdint>
#include <cstring>

// Loops are compiled for several instruction sets, and the loader takes the
// widest that the processor has. None uses fused multiplication and addition:
// results are the same everywhere.
#if defined(__x86_64__) && defined(__GLIBC__)
#define TF_CONVPAR_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TF_CONVPAR_CLONES
#endif

// Inlined into functions that are compiled for several instruction sets, whose
// own each then has.
#define TF_CONVPAR_ALWAYS_INLINE __attribute__((always_inline))
#define TF_CONVPAR_INLINE inline TF_CONVPAR_ALWAYS_INLINE

namespace tf_convpar {
namespace channels {

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// `count` numbers, at most kLanes, and zeros.
TF_CONVPAR_INLINE Lanes Load(const float* p, int64_t count) {
  Lanes found = {};
  std::memcpy(&found, p, count * sizeof(float));
  return found;
}

TF_CONVPAR_INLINE void Store(Lanes lanes, int64_t count, float* p) {
  std::memcpy(p, &lanes, count * sizeof(float));
}

TF_CONVPAR_INLINE float SumOf(Lanes lanes) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

// Calls `run(c, count)` for channels from c on, as many as there are lanes; for
// the last ones once more, with what is left.
template <typename Run>
TF_CONVPAR_INLINE void InLanes(int64_t width, const Run& run) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) run(c, kLanes);
  if (c < width) run(c, width - c);
}

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_LANES_H_
