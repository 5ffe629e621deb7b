// Normalization of the channels of each pixel by themselves.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_PIXELS_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_PIXELS_H_

#include <cstdint>

namespace tf_convpar {
namespace channels {

// Each row less its mean, by the root of its variance and epsilon. `y` may be
// `x`.
void NormalizeRows(const float* x, int64_t rows, int64_t channels,
                   float epsilon, float* y);

// The same, each channel then times a factor and plus a summand.
void NormalizeRows(const float* x, const float* gamma, const float* beta,
                   int64_t rows, int64_t channels, float epsilon, float* y);

// Gradients of that by `x`; and for each channel the sums of `dy` and of `dy`
// times normalized rows, which are the gradients by beta and gamma. `dx` may be
// `dy` or `x`.
void NormalizedGradient(const float* dy, const float* x, const float* gamma,
                        int64_t rows, int64_t channels, float epsilon,
                        float* dx, float* sums, float* products);

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_PIXELS_H_
