// Activations that follow a normalization.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_

#include <string>

namespace tf_convpar {
namespace channels {

enum class Activation { kLinear, kRelu, kRelu6, kSilu, kGelu };

// The activation of that name, which ops check; linear for any other.
inline Activation Named(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "relu6") return Activation::kRelu6;
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  return Activation::kLinear;
}

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_ACTIVATION_H_
