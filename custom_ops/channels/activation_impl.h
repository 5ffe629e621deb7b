// Activations and their derivatives, of vectors V of any width. Compilers make
// no vectors of the same for one number: they make branches of comparisons.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_IMPL_H_

#include <cstdint>

#include "custom_ops/channels/activation.h"
#include "custom_ops/simd/vectors_impl.h"

TF_CONVPAR_BEGIN(TF_CONVPAR_UNFUSED)
namespace tf_convpar {
namespace channels {
namespace {

// `lanes` where the comparison holds, 0 elsewhere.
template <typename V, typename Holds>
TF_CONVPAR_INLINE V Where(Holds holds, V lanes) {
  return (V)((Holds)lanes & holds);
}

template <typename V>
TF_CONVPAR_INLINE V AtMost(V lanes, float most) {
  return lanes < most ? lanes : most - V{};
}

template <typename V>
TF_CONVPAR_INLINE V AtLeast(V lanes, float least) {
  return lanes > least ? lanes : least - V{};
}

template <typename V>
TF_CONVPAR_INLINE V AtLeast(V lanes, V least) {
  return lanes > least ? lanes : least;
}

// `Value(u)` is the activation, `Passed(u, dy)` its derivative at u times dy.
struct Linear {
  template <typename V>
  static TF_CONVPAR_INLINE V Value(V u) {
    return u;
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Passed(V, V dy) {
    return dy;
  }
};

// What is no number stays none, here and in `Relu6`: training that has diverged
// must be seen to.
struct Relu {
  template <typename V>
  static TF_CONVPAR_INLINE V Value(V u) {
    return Where(~(u <= 0.0f), u);
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Passed(V u, V dy) {
    return Where(u > 0.0f, dy);
  }
};

struct Relu6 {
  template <typename V>
  static TF_CONVPAR_INLINE V Value(V u) {
    const V least = Relu::Value(u);
    return least > 6.0f ? 6.0f - V{} : least;
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Passed(V u, V dy) {
    return Where((u > 0.0f) & (u < 6.0f), dy);
  }
};

// exp(x) to 2 units in the last place: 2^n e^r, with a polynomial for e^r on
// half an octave (Cephes, `expf`). Below -87.6 it is 0, and above 88.3
// infinite: a gate that is open or closed by a little would not be, for images
// that are large enough.
template <typename V>
TF_CONVPAR_INLINE V Exp(V x) {
  using Bits = decltype(x < x);
  // Powers from -127, whose bits are those of 0, to 128, of infinity.
  x = AtMost(AtLeast(x, -88.0f), 89.0f);
  // Rounded to the nearest: a half of the sign of x is added, and cut off.
  const Bits sign = (Bits)x & INT32_MIN;
  const V half = (V)((Bits)(0.5f - V{}) | sign);
  const Bits n = __builtin_convertvector(x * 1.44269504f + half, Bits);
  const V whole = __builtin_convertvector(n, V);
  const V r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * (V)((n + 127) << 23);
}

struct Silu {
  template <typename V>
  static TF_CONVPAR_INLINE V Gate(V u) {
    return 1.0f / (1.0f + Exp(-u));
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Value(V u) {
    return u * Gate(u);
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Passed(V u, V dy) {
    const V gate = Gate(u);
    return dy * (gate + u * (gate * (1.0f - gate)));
  }
};

// u P(u), where P is the normal distribution (Hendrycks and Gimpel, 2016). P is
// exact to 1e-7: M. Abramowitz and I. Stegun, Handbook of Mathematical
// Functions, 7.1.26, with erf(z) at z = |u| / sqrt(2).
struct Gelu {
  // exp(-u^2 / 2).
  template <typename V>
  static TF_CONVPAR_INLINE V Bell(V u) {
    return Exp(u * u * -0.5f);
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Distribution(V u, V bell) {
    const V t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * AtLeast(u, -u));
    V p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const V beyond = 0.5f * p * t * bell;
    return Where(u < 0.0f, beyond) + Where(u >= 0.0f, 1.0f - beyond);
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Value(V u) {
    return u * Distribution(u, Bell(u));
  }
  template <typename V>
  static TF_CONVPAR_INLINE V Passed(V u, V dy) {
    const V bell = Bell(u);
    return dy * (Distribution(u, bell) + u * bell * 0.39894228f);
  }
};

}  // namespace
}  // namespace channels
}  // namespace tf_convpar
TF_CONVPAR_END

// Calls `run<F>(...)` with the F of an activation.
#define TF_CONVPAR_BY_ACTIVATION(activation, run, ...) \
  switch (activation) {                                \
    case channels::Activation::kLinear:                \
      run<channels::Linear>(__VA_ARGS__);              \
      break;                                           \
    case channels::Activation::kRelu:                  \
      run<channels::Relu>(__VA_ARGS__);                \
      break;                                           \
    case channels::Activation::kRelu6:                 \
      run<channels::Relu6>(__VA_ARGS__);               \
      break;                                           \
    case channels::Activation::kSilu:                  \
      run<channels::Silu>(__VA_ARGS__);                \
      break;                                           \
    case channels::Activation::kGelu:                  \
      run<channels::Gelu>(__VA_ARGS__);                \
      break;                                           \
  }

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_IMPL_H_
