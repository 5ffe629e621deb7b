// The kernels of the ops on vectors in few bits.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/blocks/kernels.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/instruction_set.h"
#include "custom_ops/simd/kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using blocks::kBlock;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// A guess, for what is worth another thread.
constexpr int64_t kCyclesPerBlock = 200;

// Values of a block.
int64_t InBlock(int64_t block, int64_t values) {
  return std::min(kBlock, values - block * kBlock);
}

// Whether a vector has no values, or as many as another.
bool IsOptional(const Tensor& vector, const Tensor& other) {
  return vector.dims() == 1 && (vector.NumElements() == 0 ||
                                vector.NumElements() == other.NumElements());
}

const float* DataOrNull(const Tensor& vector) {
  return vector.NumElements() == 0 ? nullptr : vector.flat<float>().data();
}

absl::Status BitsOf(OpKernelConstruction* ctx, int* bits) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("bits", bits));
  if (*bits == 4 || *bits == 8) return CheckInstructionSet();
  return absl::InvalidArgumentError(
      absl::StrCat("Expected 4 or 8 bits. Received ", *bits));
}

class EncodeBlocksOp : public OpKernel {
 public:
  explicit EncodeBlocksOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, BitsOf(ctx, &bits_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &values = ctx->input(0), &less = ctx->input(1),
                 &left = ctx->input(2);
    OP_REQUIRES(
        ctx,
        values.dims() == 1 && IsOptional(less, values) &&
            IsOptional(left, values),
        absl::InvalidArgumentError(absl::StrCat(
            "EncodeBlocks: Expected vectors of one size; the second or third "
            "may have none. Received ",
            values.shape().DebugString(), ", ", less.shape().DebugString(),
            ", ", left.shape().DebugString())));
    const int64_t size = values.NumElements(), count = blocks::Count(size);
    const int64_t width = blocks::Width(bits_);
    Tensor *message = nullptr, *rest = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(
                            0, TensorShape({blocks::MessageBytes(bits_, size)}),
                            &message));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, left.shape(), &rest));
    const bool remembers = left.NumElements() > 0;
    const float* const from = values.flat<float>().data();
    const float* const taken = DataOrNull(less);
    const float* const before = DataOrNull(left);
    float* const after = rest->flat<float>().data();
    uint8_t* const numbers = message->flat<uint8_t>().data();
    const auto encode = simd::Best().blocks.encode;
    InParallel(ctx, count, kCyclesPerBlock, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t at = b * kBlock;
        float scale;
        encode(bits_, from + at, taken == nullptr ? nullptr : taken + at,
               remembers ? before + at : nullptr, InBlock(b, size),
               numbers + b * width, &scale, remembers ? after + at : nullptr);
        std::memcpy(numbers + count * width + b * sizeof(scale), &scale,
                    sizeof(scale));
      }
    });
  }

 private:
  int bits_;
};

class DecodeBlocksOp : public OpKernel {
 public:
  explicit DecodeBlocksOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, BitsOf(ctx, &bits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("size", &size_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &message = ctx->input(0), &added = ctx->input(1);
    const int64_t count = blocks::Count(size_), width = blocks::Width(bits_);
    const int64_t bytes = blocks::MessageBytes(bits_, size_);
    OP_REQUIRES(ctx, message.dims() == 1 && message.NumElements() == bytes,
                absl::InvalidArgumentError(absl::StrCat(
                    "DecodeBlocks: Expected the ", bytes, " bytes of ", size_,
                    " values of ", bits_, " bits. Received ",
                    message.shape().DebugString())));
    const bool adds = added.NumElements() > 0;
    OP_REQUIRES(ctx,
                added.dims() == 1 && (!adds || added.NumElements() == size_),
                absl::InvalidArgumentError(
                    absl::StrCat("DecodeBlocks: Expected ", size_,
                                 " values to add to, or none. Received ",
                                 added.shape().DebugString())));
    Tensor* values = nullptr;
    const TensorShape shape({size_});
    OP_REQUIRES_OK(ctx, adds ? ctx->forward_input_or_allocate_output(
                                   {1}, 0, shape, &values)
                             : ctx->allocate_output(0, shape, &values));
    const float* const others = DataOrNull(added);
    const uint8_t* const numbers = message.flat<uint8_t>().data();
    float* const to = values->flat<float>().data();
    const auto decode = simd::Best().blocks.decode;
    InParallel(ctx, count, kCyclesPerBlock, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float scale;
        std::memcpy(&scale, numbers + count * width + b * sizeof(scale),
                    sizeof(scale));
        decode(bits_, numbers + b * width, scale, InBlock(b, size_),
               adds ? others + b * kBlock : nullptr, to + b * kBlock);
      }
    });
  }

 private:
  int bits_;
  int64_t size_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>EncodeBlocks").Device(tensorflow::DEVICE_CPU),
    EncodeBlocksOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>DecodeBlocks").Device(tensorflow::DEVICE_CPU),
    DecodeBlocksOp);

}  // namespace
}  // namespace tf_convpar
