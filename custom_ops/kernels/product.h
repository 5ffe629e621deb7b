// A convolution as a product of matrices, divided among an op's threads.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_PRODUCT_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_PRODUCT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/channels/joined.h"
#include "custom_ops/windows/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_convpar {

// Images, the panels of a kernel, and the feature maps.
struct Product {
  windows::Sizes of;
  int64_t rows;  // of the feature maps: pixels of all images
  int64_t filters;
  const channels::Joined* images;  // as they are, but for windows of one pixel
  const float* panels;
  bilinear::Ending ending;
  float* y;

  int64_t depth() const {
    return of.window_height * of.window_width * of.channels;
  }

  // Whether windows are the pixels of the images.
  bool OfPixels() const {
    return of.window_height * of.window_width * of.stride == 1 && !of.Pads();
  }
};

// It fails without memory for what has to be copied of the images.
absl::Status Multiply(tensorflow::OpKernelContext* ctx, const Product& of);

// Whether so few pixels pass by so large a kernel that it is not worth
// arranging: it is read once, at the speed of memory.
bool Streams(const Product& of);

// The same with that kernel, [depth, filters], and a factor for each filter, or
// null; the product has no panels.
absl::Status MultiplyStreamed(tensorflow::OpKernelContext* ctx,
                              const Product& of, const float* kernel,
                              const float* scale);

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_PRODUCT_H_
