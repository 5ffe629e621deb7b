// Activations that follow a normalization, and their derivatives, of several
// numbers at once. Compilers make no vectors of the same for one number: they
// make branches of comparisons.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_

#include <cstdint>
#include <cstring>
#include <string>

// Inlined into functions that are compiled for several instruction sets, whose
// own each then has.
#define TF_CONVPAR_INLINE inline __attribute__((always_inline))

namespace tf_convpar {
namespace channels {

enum class Activation { kLinear, kRelu, kRelu6, kSilu };

// The activation of that name, which ops check; linear for any other.
inline Activation Named(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "relu6") return Activation::kRelu6;
  if (name == "silu") return Activation::kSilu;
  return Activation::kLinear;
}

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Bits __attribute__((vector_size(kLanes * sizeof(int32_t))));

// `count` numbers, at most kLanes, and zeros.
TF_CONVPAR_INLINE Lanes Load(const float* p, int64_t count) {
  Lanes found = {};
  std::memcpy(&found, p, count * sizeof(float));
  return found;
}

TF_CONVPAR_INLINE void Store(Lanes lanes, int64_t count, float* p) {
  std::memcpy(p, &lanes, count * sizeof(float));
}

TF_CONVPAR_INLINE Lanes Both(float value) { return value - Lanes{}; }

// `lanes` where the comparison holds, 0 elsewhere.
TF_CONVPAR_INLINE Lanes Where(Bits holds, Lanes lanes) {
  return (Lanes)((Bits)lanes & holds);
}

TF_CONVPAR_INLINE Lanes AtMost(Lanes lanes, float most) {
  return Where(lanes < most, lanes) + Where(lanes >= most, Both(most));
}

TF_CONVPAR_INLINE Lanes AtLeast(Lanes lanes, float least) {
  return Where(lanes > least, lanes) + Where(lanes <= least, Both(least));
}

// `Value(u)` is the activation, `Passed(u, dy)` its derivative at u times dy.
struct Linear {
  static TF_CONVPAR_INLINE Lanes Value(Lanes u) { return u; }
  static TF_CONVPAR_INLINE Lanes Passed(Lanes, Lanes dy) { return dy; }
};

struct Relu {
  static TF_CONVPAR_INLINE Lanes Value(Lanes u) { return Where(u > 0.0f, u); }
  static TF_CONVPAR_INLINE Lanes Passed(Lanes u, Lanes dy) {
    return Where(u > 0.0f, dy);
  }
};

struct Relu6 {
  static TF_CONVPAR_INLINE Lanes Value(Lanes u) {
    return AtMost(Where(u > 0.0f, u), 6.0f);
  }
  static TF_CONVPAR_INLINE Lanes Passed(Lanes u, Lanes dy) {
    return Where((u > 0.0f) & (u < 6.0f), dy);
  }
};

// exp(x) where |x| <= 87, to 2 units in the last place: 2^n e^r, with a
// polynomial for e^r on half an octave (Cephes, `expf`).
TF_CONVPAR_INLINE Lanes Exp(Lanes x) {
  x = AtMost(AtLeast(x, -87.0f), 87.0f);
  // Rounded to the nearest: a half of the sign of x is added, and cut off.
  const Bits sign = (Bits)x & INT32_MIN;
  const Lanes half = (Lanes)((Bits)Both(0.5f) | sign);
  const Bits n = __builtin_convertvector(x * 1.44269504f + half, Bits);
  const Lanes whole = __builtin_convertvector(n, Lanes);
  const Lanes r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * (Lanes)((n + 127) << 23);
}

struct Silu {
  static TF_CONVPAR_INLINE Lanes Gate(Lanes u) {
    return 1.0f / (1.0f + Exp(-u));
  }
  static TF_CONVPAR_INLINE Lanes Value(Lanes u) { return u * Gate(u); }
  static TF_CONVPAR_INLINE Lanes Passed(Lanes u, Lanes dy) {
    const Lanes gate = Gate(u);
    return dy * (gate + u * (gate * (1.0f - gate)));
  }
};

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_
