// What kernels of ops on channels share: checks, and work in blocks of rows.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_CHANNELS_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_CHANNELS_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/in_parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {

inline const float* Floats(const tensorflow::Tensor& tensor) {
  return tensor.flat<float>().data();
}

// Maps as rows of channels, which are those of images.
struct Rows {
  explicit Rows(const tensorflow::Tensor& x)
      : channels(x.dim_size(x.dims() - 1)),
        rows(channels > 0 ? x.NumElements() / channels : 0) {}

  int64_t channels, rows;
};

// Whether there are channels.
absl::Status CheckRank(absl::string_view op, const tensorflow::Tensor& x);

// Whether there is a number for each channel; or, where it `may_miss`, none.
absl::Status CheckVector(absl::string_view op, absl::string_view name,
                         const tensorflow::Tensor& vector, int64_t channels,
                         bool may_miss = false);

absl::Status CheckSame(absl::string_view op, const tensorflow::Tensor& x,
                       const tensorflow::Tensor& other);

// Two vectors for each block of rows, `run(first, count, vectors)`, as `found`
// of shape [blocks, 2, channels]. Each of so many `images` has blocks of its
// own, which follow each other.
template <typename Run>
absl::Status InBlocks(tensorflow::OpKernelContext* ctx, const Rows& of,
                      int maps, tensorflow::Tensor* found, const Run& run,
                      int64_t images = 1) {
  const int64_t each = channels::RowsPerBlock(of.channels);
  const int64_t pixels = images > 0 ? of.rows / images : 0;
  const int64_t blocks = (pixels + each - 1) / each;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(
      tensorflow::DT_FLOAT,
      tensorflow::TensorShape({images * blocks, 2, of.channels}), found));
  float* const vectors = found->flat<float>().data();
  InParallel(ctx, images * blocks, maps * each * of.channels,
             [&](int64_t begin, int64_t end) {
               for (int64_t b = begin; b < end; ++b) {
                 const int64_t first = b % blocks * each;
                 run(b / blocks * pixels + first,
                     std::min(each, pixels - first),
                     vectors + 2 * b * of.channels);
               }
             });
  return absl::OkStatus();
}

// The sum of what blocks from `begin` to `end` have, two vectors each.
void AddUp(const tensorflow::Tensor& parts, int64_t begin, int64_t end,
           float* sums);

// An op with an activation.
class WithActivation : public tensorflow::OpKernel {
 public:
  explicit WithActivation(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    std::string name;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &name));
    activation_ = channels::Named(name);
  }

 protected:
  channels::Activation activation_ = channels::Activation::kLinear;
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_CHANNELS_H_
