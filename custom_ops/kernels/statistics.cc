// The kernels of the ops on statistics of channels: rows of a number for each
// channel, by which batch normalization scales feature maps and gradients.
//
// A network has a hundred such rows, of which TensorFlow makes each by a dozen
// ops; what an op costs by itself is more than what it computes.
//
// Devices exchange rows, and all wait for the last. TensorFlow hands what is to
// be sent to one thread, and goes on with what is next on the device in
// another. On a core of their own the second would compute for as long as the
// system lets a thread, some milliseconds, before the first could send
// anything: so it lets other threads have their turn.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Whether each is a vector of so many numbers.
bool AreVectors(std::initializer_list<const Tensor*> tensors, int64_t size) {
  for (const Tensor* tensor : tensors) {
    if (tensor->dims() != 1 || tensor->NumElements() != size) return false;
  }
  return true;
}

// The same of weights, of which those of no numbers are none.
bool AreWeights(std::initializer_list<const Tensor*> tensors, int64_t size) {
  for (const Tensor* tensor : tensors) {
    if (!AreVectors({tensor}, size) && !AreVectors({tensor}, 0)) return false;
  }
  return true;
}

// Whether these are two rows, of so many numbers each.
bool AreTwoRows(const Tensor& tensor, int64_t size) {
  return tensor.dims() == 2 && tensor.dim_size(0) == 2 &&
         tensor.dim_size(1) == size;
}

absl::Status Unexpected(absl::string_view expected, OpKernelContext* ctx) {
  std::string received;
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    absl::StrAppend(&received, i == 0 ? "" : ", ",
                    ctx->input(i).shape().DebugString());
  }
  return absl::InvalidArgumentError(
      absl::StrCat(ctx->op_kernel().type_string_view(), ": Expected ", expected,
                   ". Received ", received));
}

class AffineOp : public OpKernel {
 public:
  explicit AffineOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& moments = ctx->input(0);
    const Tensor &gamma = ctx->input(1), &beta = ctx->input(2);
    const int64_t channels = moments.dims() == 2 ? moments.dim_size(1) : 0;
    OP_REQUIRES(
        ctx,
        AreTwoRows(moments, channels) && AreWeights({&gamma, &beta}, channels),
        Unexpected("two rows, of means and variances, and gamma and "
                   "beta of their size, or [0] for none",
                   ctx));
    Tensor *scale = nullptr, *offset = nullptr;
    const TensorShape shape({channels});
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &scale));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, shape, &offset));
    const auto of = moments.matrix<float>();
    const auto g = gamma.flat<float>(), b = beta.flat<float>();
    auto s = scale->flat<float>(), o = offset->flat<float>();
    for (int64_t c = 0; c < channels; ++c) {
      const float inverse = 1.0f / std::sqrt(of(1, c) + epsilon_);
      s(c) = g.size() > 0 ? g(c) * inverse : inverse;
      o(c) = (b.size() > 0 ? b(c) : 0.0f) - of(0, c) * s(c);
    }
  }

 private:
  float epsilon_;
};

class BatchNormalizationGradientOp : public OpKernel {
 public:
  explicit BatchNormalizationGradientOp(OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("give_way", &give_way_));
  }

  void Compute(OpKernelContext* ctx) override {
    if (give_way_) std::this_thread::yield();
    const Tensor &sums = ctx->input(0), &moments = ctx->input(1);
    const Tensor &gamma = ctx->input(2), &one_of_n = ctx->input(3);
    const int64_t channels = moments.dims() == 2 ? moments.dim_size(1) : 0;
    OP_REQUIRES(
        ctx,
        AreTwoRows(moments, channels) && AreTwoRows(sums, channels) &&
            AreWeights({&gamma}, channels) && one_of_n.dims() == 0,
        Unexpected(
            "two rows of sums, two of means and variances, gamma, of one "
            "size, or [0] for none, and a scalar",
            ctx));
    Tensor* outputs[3];
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(
          ctx, ctx->allocate_output(i, TensorShape({channels}), &outputs[i]));
    }
    const auto sum = sums.matrix<float>(), of = moments.matrix<float>();
    const auto g = gamma.flat<float>();
    const float part = one_of_n.scalar<float>()();
    auto by_maps = outputs[0]->flat<float>(),
         by_all = outputs[1]->flat<float>();
    auto by_gamma = outputs[2]->flat<float>();
    for (int64_t c = 0; c < channels; ++c) {
      const float inverse = 1.0f / std::sqrt(of(1, c) + epsilon_);
      const float scale = g.size() > 0 ? g(c) * inverse : inverse;
      by_gamma(c) = sum(1, c) * inverse;
      by_maps(c) = -scale * inverse * by_gamma(c) * part;
      by_all(c) = -scale * sum(0, c) * part - by_maps(c) * of(0, c);
    }
  }

 private:
  float epsilon_;
  bool give_way_;
};

class MergedMomentsOp : public OpKernel {
 public:
  explicit MergedMomentsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("give_way", &give_way_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& fractions = ctx->input(0);
    OpInputList rows;
    OP_REQUIRES_OK(ctx, ctx->input_list("rows", &rows));
    const int64_t channels = rows[0].dims() == 2 ? rows[0].dim_size(1) : 0;
    bool alike = AreVectors({&fractions}, rows.size());
    for (const Tensor& row : rows) alike = alike && AreTwoRows(row, channels);
    OP_REQUIRES(ctx, alike,
                Unexpected("a fraction for each of several pairs of rows, of "
                           "means and variances, of one size",
                           ctx));
    Tensor* moments = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows[0].shape(), &moments));
    const auto of = fractions.flat<float>();
    auto all = moments->matrix<float>();
    all.setZero();
    for (int i = 0; i < rows.size(); ++i) {
      const auto own = rows[i].matrix<float>();
      for (int64_t c = 0; c < channels; ++c) all(0, c) += of(i) * own(0, c);
    }
    for (int i = 0; i < rows.size(); ++i) {
      const auto own = rows[i].matrix<float>();
      for (int64_t c = 0; c < channels; ++c) {
        const float far = own(0, c) - all(0, c);
        all(1, c) += of(i) * (own(1, c) + far * far);
      }
    }
    if (give_way_) std::this_thread::yield();
  }

 private:
  bool give_way_;
};

class MovedMomentsOp : public OpKernel {
 public:
  explicit MovedMomentsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep", &keep_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("new", &new_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& moments = ctx->input(2);
    const int64_t channels = ctx->input(0).NumElements();
    OP_REQUIRES(ctx,
                AreVectors({&ctx->input(0), &ctx->input(1)}, channels) &&
                    AreTwoRows(moments, channels),
                Unexpected("moving means and variances, and two rows of means "
                           "and variances, of one size",
                           ctx));
    const auto now = moments.matrix<float>();
    for (int i = 0; i < 2; ++i) {
      Tensor* moved = nullptr;
      OP_REQUIRES_OK(ctx,
                     ctx->allocate_output(i, ctx->input(i).shape(), &moved));
      const auto before = ctx->input(i).flat<float>();
      auto after = moved->flat<float>();
      for (int64_t c = 0; c < channels; ++c) {
        after(c) = before(c) * keep_ + now(i, c) * new_;
      }
    }
  }

 private:
  float keep_, new_;
};

REGISTER_KERNEL_BUILDER(Name("TfConvpar>Affine").Device(tensorflow::DEVICE_CPU),
                        AffineOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>BatchNormalizationGradient").Device(tensorflow::DEVICE_CPU),
    BatchNormalizationGradientOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>MergedMoments").Device(tensorflow::DEVICE_CPU),
    MergedMomentsOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>MovedMoments").Device(tensorflow::DEVICE_CPU),
    MovedMomentsOp);

}  // namespace
}  // namespace tf_convpar
