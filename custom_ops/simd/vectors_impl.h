// Vectors of floats, and what compiles code for one instruction set.
//
// The source file that compiles the `_impl.h` headers for an instruction set
// names it: TF_CONVPAR_SET is its namespace in instruction_set.h, and
// TF_CONVPAR_FUSED is what the compiler calls it; TF_CONVPAR_UNFUSED too, but
// without fused multiplication and addition of these vectors. What stands
// between TF_CONVPAR_BEGIN and TF_CONVPAR_END is compiled for that set. It is
// in nameless namespaces: a linker would merge it with that of other sets. The
// rest, as all that other headers have, is compiled for any processor.

#ifndef TF_CONVPAR_CUSTOM_OPS_SIMD_VECTORS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_SIMD_VECTORS_IMPL_H_

#include <cstdint>
#include <cstring>

#include "custom_ops/simd/instruction_set.h"

#define TF_CONVPAR_PRAGMA(text) _Pragma(#text)
#if !defined(TF_CONVPAR_SET)
#define TF_CONVPAR_SET base
#define TF_CONVPAR_BEGIN(flags)
#define TF_CONVPAR_END
// Vectors of eight floats are parts of no interface.
#pragma GCC diagnostic ignored "-Wpsabi"
#elif defined(__clang__)
#define TF_CONVPAR_BEGIN(flags)                                          \
  TF_CONVPAR_PRAGMA(clang attribute push(__attribute__((target(flags))), \
                                         apply_to = function))
#define TF_CONVPAR_END TF_CONVPAR_PRAGMA(clang attribute pop)
#else
#define TF_CONVPAR_BEGIN(flags)       \
  TF_CONVPAR_PRAGMA(GCC push_options) \
  TF_CONVPAR_PRAGMA(GCC target(flags))
#define TF_CONVPAR_END TF_CONVPAR_PRAGMA(GCC pop_options)
#endif

#define TF_CONVPAR_ALWAYS_INLINE __attribute__((always_inline))
#define TF_CONVPAR_INLINE inline TF_CONVPAR_ALWAYS_INLINE

TF_CONVPAR_BEGIN(TF_CONVPAR_UNFUSED)
namespace tf_convpar {
namespace simd {
namespace {

constexpr InstructionSet kSet = TF_CONVPAR_SET::kSet;
constexpr int64_t kLanes = kSet.lanes;

template <int kFloats>
struct VectorOf {
  typedef float Type __attribute__((vector_size(kFloats * sizeof(float))));
};

// The widest that registers hold.
using Vector = VectorOf<kLanes>::Type;
// As wide everywhere.
using Eight = VectorOf<8>::Type;

template <typename V = Vector>
TF_CONVPAR_INLINE V Load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename V>
TF_CONVPAR_INLINE void Store(float* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}

// `count` numbers, at most as many as there are lanes, and zeros.
template <typename V = Vector>
TF_CONVPAR_INLINE V Load(const float* p, int64_t count) {
  V v = {};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

template <typename V>
TF_CONVPAR_INLINE void Store(float* p, V v, int64_t count) {
  std::memcpy(p, &v, count * sizeof(float));
}

}  // namespace
}  // namespace simd
}  // namespace tf_convpar
TF_CONVPAR_END

#endif  // TF_CONVPAR_CUSTOM_OPS_SIMD_VECTORS_IMPL_H_
