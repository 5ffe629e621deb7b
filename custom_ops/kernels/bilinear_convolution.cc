#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/kernels/bilinear_program.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/remembered.h"
#include "custom_ops/kernels/workspace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/tstring.h"

namespace tf_convpar {
namespace {

using bilinear::BestPasses;
using bilinear::ForwardSizes;
using bilinear::ForwardTensors;
using bilinear::Geometry;
using bilinear::GradientSizes;
using bilinear::kAxes;
using bilinear::Pass;
using bilinear::Passes;
using bilinear::Program;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The threads that TensorFlow gives to one op.
class OpPool final : public bilinear::Pool {
 public:
  explicit OpPool(OpKernelContext* ctx) : ctx_(ctx) {}

  int threads() const override {
    return ctx_->device()->tensorflow_cpu_worker_threads()->num_threads;
  }

  void Run(int64_t total, void (*task)(void*, int64_t, int64_t),
           void* context) override {
    // The passes hand out no more parts than there are threads.
    constexpr int64_t kMany = int64_t{1} << 30;
    InParallel(ctx_, total, kMany,
               [task, context](int64_t first, int64_t last) {
                 task(context, first, last);
               });
  }

 private:
  OpKernelContext* const ctx_;
};

float* Data(Tensor* t) { return t->flat<float>().data(); }
const float* Data(const Tensor& t) { return t.flat<float>().data(); }

absl::Status NoMemory(int64_t floats) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "Expected ", floats * sizeof(float) >> 20,
      " MiB for the workspace of a convolution. Received: none. A smaller "
      "batch, or algorithm=\"direct\", needs less."));
}

absl::Status CheckInstructionSet() {
  if (BestPasses() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Expected the environment variable ", bilinear::kWidest,
                   " to be avx512, avx2 or base, or not to be set. Received: ",
                   std::getenv(bilinear::kWidest)));
}

// The geometry of an op, of which attributes give a part. Images of fewer
// axes than three get leading axes of size 1.
class Frame {
 public:
  absl::Status Read(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(Read(ctx, "step", 1, &step_));
    TF_RETURN_IF_ERROR(Read(ctx, "pad_before", 0, &before_));
    return Read(ctx, "pad_after", 0, &after_);
  }

  // What images, or with `adjoint` feature maps, and a kernel, [window,
  // channels, filters], give.
  absl::Status Fill(const TensorShape& x, const TensorShape& kernel,
                    bool adjoint, Geometry* g) const {
    if (x.dims() != axes_ + 2 || kernel.dims() != axes_ + 2 ||
        x.dim_size(axes_ + 1) != kernel.dim_size(axes_ + adjoint)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Expected ", axes_, " axes and the channels of the kernel, ",
          kernel.DebugString(), ". Received shape: ", x.DebugString()));
    }
    *g = {};
    g->batch = x.dim_size(0);
    g->channels = kernel.dim_size(axes_);
    g->filters = kernel.dim_size(axes_ + 1);
    for (int axis = 0; axis < kAxes; ++axis) {
      const int own = axis - (kAxes - axes_);
      const int64_t size = own < 0 ? 1 : x.dim_size(own + 1);
      g->window[axis] = own < 0 ? 1 : kernel.dim_size(own);
      g->step[axis] = own < 0 ? 1 : step_[own];
      g->pad[axis] = own < 0 ? 0 : before_[own];
      const int64_t more =
          own < 0 ? 0 : before_[own] + after_[own] - g->window[axis] + 1;
      g->image[axis] = adjoint ? size - more : size;
      g->output[axis] = adjoint ? size : size + more;
      if (g->output[axis] < 0 || g->image[axis] < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Expected padded images no smaller than the kernel, ",
            kernel.DebugString(), ". Received shape: ", x.DebugString()));
      }
    }
    return absl::OkStatus();
  }

  TensorShape Shape(const Geometry& g, bool adjoint) const {
    TensorShape shape({g.batch});
    for (int axis = kAxes - axes_; axis < kAxes; ++axis) {
      shape.AddDim(adjoint ? g.image[axis] : g.output[axis]);
    }
    shape.AddDim(adjoint ? g.channels : g.filters);
    return shape;
  }

  absl::Status Read(OpKernelConstruction* ctx, const char* name, int64_t least,
                    std::vector<int64_t>* to) {
    TF_RETURN_IF_ERROR(ctx->GetAttr(name, to));
    if (axes_ == 0) axes_ = static_cast<int>(to->size());
    if (to->empty() || to->size() > kAxes ||
        to->size() != static_cast<size_t>(axes_) ||
        *std::min_element(to->begin(), to->end()) < least ||
        *std::max_element(to->begin(), to->end()) > kMost) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Expected `", name, "` to be one integer per axis, each from ", least,
          " to ", kMost, ", of 1 to 3 axes."));
    }
    return absl::OkStatus();
  }

 private:
  // Sums and products of three such numbers cannot overflow.
  static constexpr int64_t kMost = 1 << 16;

  int axes_ = 0;
  std::vector<int64_t> step_, before_, after_;
};

// Whether programs lead from the values of a tile to those of another.
absl::Status CheckProgram(const Program& program, const char* name,
                          int64_t from, int64_t to) {
  if (program.inputs == from && program.outputs == to) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Expected the ", name, " program to lead from ", from, " values to ", to,
      ". Received one from ", program.inputs, " to ", program.outputs, "."));
}

int64_t Tile(const Geometry& g) { return g.tile(0) * g.tile(1) * g.tile(2); }
int64_t Step(const Geometry& g) { return g.step[0] * g.step[1] * g.step[2]; }
int64_t Places(const Geometry& g) {
  return g.window[0] * g.window[1] * g.window[2];
}

class BilinearForwardOp : public OpKernel {
 public:
  explicit BilinearForwardOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, CheckInstructionSet());
    OP_REQUIRES_OK(ctx, frame_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("adjoint", &adjoint_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("remember", &remember_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("relu", &relu_));
    OP_REQUIRES(ctx, !(relu_ && adjoint_),
                absl::InvalidArgumentError(
                    "Expected no `relu` in a gradient. Received one."));
    OP_REQUIRES_OK(ctx, image_.Read(ctx, "image_"));
    OP_REQUIRES_OK(ctx, maps_.Read(ctx, "maps_"));
    OP_REQUIRES_OK(ctx, kernel_.Read(ctx, "kernel_"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& kernel = ctx->input(1);
    const Tensor& bias = ctx->input(2);
    Pass pass = {
        {}, adjoint_, image_.program(), maps_.program(), kernel_.program()};
    Geometry& g = pass.geometry;
    OP_REQUIRES_OK(ctx, frame_.Fill(x.shape(), kernel.shape(), adjoint_, &g));
    g.points = pass.image.outputs;
    OP_REQUIRES_OK(ctx, CheckProgram(pass.image, "image",
                                     adjoint_ ? Step(g) : Tile(g), g.points));
    OP_REQUIRES_OK(ctx, CheckProgram(pass.maps, "maps", g.points,
                                     adjoint_ ? Tile(g) : Step(g)));
    OP_REQUIRES_OK(ctx,
                   CheckProgram(pass.kernel, "kernel", Places(g), g.points));
    OP_REQUIRES(ctx,
                bias.NumElements() == 0 ||
                    (!adjoint_ && bias.NumElements() == g.filters),
                absl::InvalidArgumentError(
                    absl::StrCat("Expected a bias of ", g.filters,
                                 " values or none. "
                                 "Received shape: ",
                                 bias.shape().DebugString())));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, frame_.Shape(g, adjoint_), &y));
    if (y->NumElements() == 0) return;
    if (x.NumElements() == 0) {
      y->flat<float>().setZero();
      return;
    }

    const Passes& passes = *BestPasses();
    OpPool pool(ctx);
    const ForwardSizes sizes(bilinear::ExtentOf(pass, pool.threads()),
                             passes.set, remember_);
    // The spectrum, if it is not remembered, lies behind the scratch.
    const Workspace scratch(sizes.scratch + (remember_ ? 0 : sizes.spectrum));
    OP_REQUIRES(ctx, scratch.data() != nullptr,
                NoMemory(sizes.scratch + sizes.spectrum));
    ForwardTensors tensors = {Data(x), Data(kernel),
                              bias.NumElements() ? Data(bias) : nullptr,
                              Data(y), relu_};
    if (sizes.by_parts) {
      passes.forward_by_parts(pass, sizes, tensors, scratch.data(), pool);
      return;
    }

    std::shared_ptr<const float> known;
    if (remember_) known = remembered_.Find({kernel});
    if (known == nullptr) {
      std::shared_ptr<float> made;
      if (remember_) {
        made = Lasting(sizes.spectrum);
        OP_REQUIRES(ctx, made != nullptr, NoMemory(sizes.spectrum));
      }
      float* const spectrum =
          remember_ ? made.get() : scratch.data() + sizes.scratch;
      passes.spectrum(pass, sizes, tensors.kernel, spectrum, scratch.data(),
                      pool);
      tensors.kernel = spectrum;
      if (remember_) remembered_.Keep({kernel}, known = made);
    } else {
      tensors.kernel = known.get();
    }
    passes.forward(pass, sizes, tensors, scratch.data(), pool);
  }

 private:
  Frame frame_;
  bool adjoint_, remember_, relu_;
  OwnedProgram image_, maps_, kernel_;
  Remembered remembered_;
};

class BilinearKernelGradientOp : public OpKernel {
 public:
  explicit BilinearKernelGradientOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, CheckInstructionSet());
    OP_REQUIRES_OK(ctx, frame_.Read(ctx));
    OP_REQUIRES_OK(ctx, frame_.Read(ctx, "window", 1, &window_));
    OP_REQUIRES_OK(ctx, image_.Read(ctx, "image_"));
    OP_REQUIRES_OK(ctx, maps_.Read(ctx, "maps_"));
    OP_REQUIRES_OK(ctx, kernel_.Read(ctx, "kernel_"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    TensorShape shape;
    for (const int64_t size : window_) shape.AddDim(size);
    shape.AddDim(x.dims() ? x.dim_size(x.dims() - 1) : 0);
    shape.AddDim(dy.dims() ? dy.dim_size(dy.dims() - 1) : 0);
    Pass pass = {
        {}, false, image_.program(), maps_.program(), kernel_.program()};
    Geometry& g = pass.geometry;
    OP_REQUIRES_OK(ctx, frame_.Fill(x.shape(), shape, false, &g));
    g.points = pass.image.outputs;
    OP_REQUIRES(ctx, frame_.Shape(g, false) == dy.shape(),
                absl::InvalidArgumentError(absl::StrCat(
                    "Expected feature maps of shape ",
                    frame_.Shape(g, false).DebugString(),
                    ". Received shape: ", dy.shape().DebugString())));
    OP_REQUIRES_OK(ctx, CheckProgram(pass.image, "image", Tile(g), g.points));
    OP_REQUIRES_OK(ctx, CheckProgram(pass.maps, "maps", Step(g), g.points));
    OP_REQUIRES_OK(ctx,
                   CheckProgram(pass.kernel, "kernel", g.points, Places(g)));
    Tensor* dk = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &dk));
    if (dk->NumElements() == 0) return;
    if (dy.NumElements() == 0) {
      dk->flat<float>().setZero();
      return;
    }
    const Passes& passes = *BestPasses();
    OpPool pool(ctx);
    const GradientSizes sizes(bilinear::ExtentOf(pass, pool.threads()),
                              passes.set);
    const Workspace scratch(sizes.scratch);
    OP_REQUIRES(ctx, scratch.data() != nullptr, NoMemory(sizes.scratch));
    passes.gradient(pass, sizes, {Data(x), Data(dy), Data(dk)}, scratch.data(),
                    pool);
  }

 private:
  Frame frame_;
  std::vector<int64_t> window_;
  OwnedProgram image_, maps_, kernel_;
};

class WorkspaceBytesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Tensor* bytes = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({3}), &bytes));
    const Workspace::Bytes now = Workspace::Statistics();
    auto to = bytes->vec<int64_t>();
    to(0) = now.in_use;
    to(1) = now.held;
    to(2) = now.most_held;
  }
};

class InstructionSetOp : public OpKernel {
 public:
  explicit InstructionSetOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, CheckInstructionSet());
  }

  void Compute(OpKernelContext* ctx) override {
    Tensor* name = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape(), &name));
    name->scalar<tensorflow::tstring>()() = BestPasses()->set.name;
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>BilinearForward").Device(tensorflow::DEVICE_CPU),
    BilinearForwardOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>BilinearKernelGradient").Device(tensorflow::DEVICE_CPU),
    BilinearKernelGradientOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>InstructionSet").Device(tensorflow::DEVICE_CPU),
    InstructionSetOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>WorkspaceBytes").Device(tensorflow::DEVICE_CPU),
    WorkspaceBytesOp);

}  // namespace
}  // namespace tf_convpar
