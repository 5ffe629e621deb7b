// Activations that follow a normalization, and their derivatives. They are
// written so that compilers make vectors of them.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_

#include <cstdint>
#include <cstring>

// Inlined into functions that are compiled for several instruction sets, whose
// own each then has.
#define TF_CONVPAR_INLINE inline __attribute__((always_inline))

namespace tf_convpar {
namespace channels {

enum class Activation { kLinear, kRelu, kRelu6, kSilu };

// `value(u)` is the activation, `slope(u)` its derivative.
struct Linear {
  static TF_CONVPAR_INLINE float value(float u) { return u; }
  static TF_CONVPAR_INLINE float slope(float) { return 1.0f; }
};

struct Relu {
  static TF_CONVPAR_INLINE float value(float u) { return u > 0.0f ? u : 0.0f; }
  static TF_CONVPAR_INLINE float slope(float u) {
    return u > 0.0f ? 1.0f : 0.0f;
  }
};

struct Relu6 {
  static TF_CONVPAR_INLINE float value(float u) {
    const float low = u > 0.0f ? u : 0.0f;
    return low < 6.0f ? low : 6.0f;
  }
  static TF_CONVPAR_INLINE float slope(float u) {
    return (u > 0.0f ? 1.0f : 0.0f) * (u < 6.0f ? 1.0f : 0.0f);
  }
};

// exp(x) where |x| <= 87, to 2 units in the last place: 2^n e^r, with a
// polynomial for e^r on half an octave (Cephes, `expf`).
TF_CONVPAR_INLINE float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float half = x < 0.0f ? -0.5f : 0.5f;
  const int32_t n = static_cast<int32_t>(x * 1.44269504f + half);
  const float whole = static_cast<float>(n);
  const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const int32_t bits = (n + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

struct Silu {
  static TF_CONVPAR_INLINE float gate(float u) {
    return 1.0f / (1.0f + Exp(-u));
  }
  static TF_CONVPAR_INLINE float value(float u) { return u * gate(u); }
  static TF_CONVPAR_INLINE float slope(float u) {
    const float s = gate(u);
    return s + u * (s * (1.0f - s));
  }
};

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_
