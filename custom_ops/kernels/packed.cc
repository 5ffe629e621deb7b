// Packs of tensors: many arguments of a function as one.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_convpar {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::Variant;
using tensorflow::VariantTensorData;

// The tensors of a pack, as TensorFlow asks of what is in a variant.
struct Packed {
  std::vector<Tensor> tensors;

  std::string TypeName() const { return "TfConvpar>Packed"; }
  std::string DebugString() const {
    return absl::StrCat(tensors.size(), " tensors");
  }
  void Encode(VariantTensorData* data) const {
    data->set_type_name(TypeName());
    for (const Tensor& tensor : tensors) *data->add_tensors() = tensor;
  }
  bool Decode(VariantTensorData data) {
    tensors = data.tensors();
    return true;
  }
};

// The pack in an input of an op.
absl::Status PackIn(OpKernelContext* ctx, int input, const Packed** found) {
  const Tensor& given = ctx->input(input);
  *found =
      given.dims() == 0 ? given.scalar<Variant>()().get<Packed>() : nullptr;
  if (*found != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ctx->op_kernel().type_string(), ": Expected what `Pack` made. Received ",
      given.DebugString()));
}

class PackOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Packed packed;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      packed.tensors.push_back(ctx->input(i));
    }
    Tensor* made = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &made));
    made->scalar<Variant>()() = std::move(packed);
  }
};

class UnpackOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Packed* packed = nullptr;
    OP_REQUIRES_OK(ctx, PackIn(ctx, 0, &packed));
    const std::vector<Tensor>& tensors = packed->tensors;
    bool alike = static_cast<int>(tensors.size()) == ctx->num_outputs();
    for (int i = 0; alike && i < ctx->num_outputs(); ++i) {
      alike = tensors[i].dtype() == ctx->expected_output_dtype(i);
    }
    OP_REQUIRES(ctx, alike,
                absl::InvalidArgumentError(absl::StrCat(
                    "Unpack: Expected a pack of ", ctx->num_outputs(),
                    " tensors of the types asked for. Received ",
                    packed->DebugString())));
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      ctx->set_output(i, tensors[i]);
    }
  }
};

class UnchangedOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Packed* packed = nullptr;
    OP_REQUIRES_OK(ctx, PackIn(ctx, 1, &packed));
    const auto handles = ctx->input(0).flat<ResourceHandle>();
    const std::size_t count = packed->tensors.size();
    OP_REQUIRES(
        ctx, static_cast<std::size_t>(handles.size()) == count,
        absl::InvalidArgumentError(absl::StrCat(
            "Unchanged: Expected as many variables as values. Received ",
            handles.size(), " and ", count)));
    bool unchanged = true;
    for (std::size_t i = 0; unchanged && i < count; ++i) {
      tensorflow::core::RefCountPtr<Var> variable;
      OP_REQUIRES_OK(ctx,
                     tensorflow::LookupResource(ctx, handles(i), &variable));
      unchanged = Has(variable.get(), packed->tensors[i]);
    }
    Tensor* found = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &found));
    found->scalar<bool>()() = unchanged;
  }

 private:
  // Whether the variable's value is this very tensor. One that is copied for
  // each reader is written to in place.
  static bool Has(Var* variable, const Tensor& value) {
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& now = *variable->tensor();
    return !variable->copy_on_read_mode.load() && now.SharesBufferWith(value) &&
           now.shape() == value.shape();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfConvpar>Pack").Device(tensorflow::DEVICE_CPU),
                        PackOp);
REGISTER_KERNEL_BUILDER(Name("TfConvpar>Unpack").Device(tensorflow::DEVICE_CPU),
                        UnpackOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>Unchanged").Device(tensorflow::DEVICE_CPU), UnchangedOp);

}  // namespace
}  // namespace tf_convpar
