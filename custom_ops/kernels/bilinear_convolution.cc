#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/bilinear/pass.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/kernels/bilinear_program.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/instruction_set.h"
#include "custom_ops/kernels/remembered.h"
#include "custom_ops/kernels/shape.h"
#include "custom_ops/kernels/workspace.h"
#include "custom_ops/ops/bounds.h"
#include "custom_ops/ops/messages.h"
#include "custom_ops/simd/kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/tstring.h"

namespace tf_convpar {
namespace {

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

// The geometry of an op, of which attributes give a part. Images of fewer
// axes than three get leading axes of size 1.
class Frame {
 public:
  explicit Frame(const char* op) : op_(op) {}

  absl::Status Read(OpKernelConstruction* ctx) {
    return ReadTiling(ctx, op_, &tiling_);
  }

  int axes() const { return tiling_.axes(); }

  // What images, or with `adjoint` feature maps, and a kernel, [window,
  // channels, filters], give.
  absl::Status Fill(const TensorShape& x, const TensorShape& kernel,
                    bool adjoint, Geometry* g) const {
    const int axes = tiling_.axes();
    if (x.dims() != axes + 2 || kernel.dims() != axes + 2 ||
        x.dim_size(axes + 1) != kernel.dim_size(axes + adjoint)) {
      return absl::InvalidArgumentError(absl::StrCat(
          op_, ": Expected ", axes, " axes and the channels of the kernel, ",
          kernel.DebugString(), ". Received shape: ", x.DebugString()));
    }
    *g = {};
    g->batch = x.dim_size(0);
    g->channels = kernel.dim_size(axes);
    g->filters = kernel.dim_size(axes + 1);
    for (int axis = 0; axis < kAxes; ++axis) {
      const int own = axis - (kAxes - axes);
      const int64_t size = own < 0 ? 1 : x.dim_size(own + 1);
      g->window[axis] = own < 0 ? 1 : kernel.dim_size(own);
      TF_RETURN_IF_ERROR(CheckImage(op_, {size}));
      TF_RETURN_IF_ERROR(CheckIntegers(op_, "a size of the window",
                                       {g->window[axis]}, 1, 1, kMostOfTile));
      g->step[axis] = own < 0 ? 1 : tiling_.step[own];
      g->pad[axis] = own < 0 ? 0 : tiling_.before[own];
      const int64_t more = own < 0 ? 0
                                   : tiling_.before[own] + tiling_.after[own] -
                                         g->window[axis] + 1;
      g->image[axis] = adjoint ? size - more : size;
      g->output[axis] = adjoint ? size : size + more;
      if (g->output[axis] < 0 || g->image[axis] < 0) {
        return BadImage(op_, kernel.DebugString(), x.DebugString());
      }
    }
    return absl::OkStatus();
  }

  // The shape of what is made of them.
  absl::Status Shape(const Geometry& g, bool adjoint,
                     TensorShape* shape) const {
    std::vector<int64_t> sizes = {g.batch};
    for (int axis = kAxes - tiling_.axes(); axis < kAxes; ++axis) {
      sizes.push_back(adjoint ? g.image[axis] : g.output[axis]);
    }
    sizes.push_back(adjoint ? g.channels : g.filters);
    return MakeShape(op_, sizes, shape);
  }

 private:
  const char* const op_;
  Tiling tiling_;
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

// Pixels of what a program takes or gives, along each axis.
using Count = int64_t[kAxes];

int64_t Pixels(const Count& count) { return count[0] * count[1] * count[2]; }

// Whether all sizes of the workspace can be counted. None is more than some
// times this for each thread.
absl::Status CheckWorkspace(const Geometry& g) {
  const double channels = static_cast<double>(g.channels + g.filters);
  const double floats =
      channels * g.points * (static_cast<double>(g.total_tiles()) + g.filters);
  constexpr double kMost = int64_t{1} << 50;
  return floats <= kMost ? absl::OkStatus() : NoMemory(-1);
}

class BilinearForwardOp : public OpKernel {
 public:
  explicit BilinearForwardOp(OpKernelConstruction* ctx)
      : OpKernel(ctx), frame_("BilinearForward") {
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
    const Count tile = {g.tile(0), g.tile(1), g.tile(2)};
    const Count& taken = adjoint_ ? g.step : tile;
    const Count& given = adjoint_ ? tile : g.step;
    OP_REQUIRES_OK(ctx,
                   CheckProgram(pass.image, "image", Pixels(taken), g.points));
    OP_REQUIRES_OK(ctx,
                   CheckProgram(pass.maps, "maps", g.points, Pixels(given)));
    OP_REQUIRES_OK(
        ctx, CheckProgram(pass.kernel, "kernel", Pixels(g.window), g.points));
    pass.image.along_axis = bilinear::ReadsAlongAxis(pass.image, taken);
    pass.maps.along_axis = bilinear::WritesAlongAxis(pass.maps, given);
    OP_REQUIRES(ctx,
                bias.NumElements() == 0 ||
                    (!adjoint_ && bias.NumElements() == g.filters),
                absl::InvalidArgumentError(
                    absl::StrCat("Expected a bias of ", g.filters,
                                 " values or none. "
                                 "Received shape: ",
                                 bias.shape().DebugString())));
    TensorShape shape;
    OP_REQUIRES_OK(ctx, frame_.Shape(g, adjoint_, &shape));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    if (x.NumElements() == 0) {
      FillWithBias(bias, y);
      return;
    }
    OP_REQUIRES_OK(ctx, CheckWorkspace(g));

    const Passes& passes = simd::Best().bilinear;
    OpPool pool(ctx);
    const ForwardSizes sizes(bilinear::ExtentOf(pass, pool.threads()),
                             simd::Best().set, remember_);
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
  // Feature maps of images that have no pixel, or no channel.
  void FillWithBias(const Tensor& bias, Tensor* y) const {
    const int64_t filters = bias.NumElements();
    y->flat<float>().setZero();
    if (filters == 0) return;
    for (int64_t i = 0; i < y->NumElements(); ++i) {
      const float plus = Data(bias)[i % filters];
      // What is no number stays none, as elsewhere.
      Data(y)[i] = relu_ && plus <= 0 ? 0.0f : plus;
    }
  }

  Frame frame_;
  bool adjoint_, remember_, relu_;
  OwnedProgram image_, maps_, kernel_;
  Remembered remembered_;
};

class BilinearKernelGradientOp : public OpKernel {
 public:
  explicit BilinearKernelGradientOp(OpKernelConstruction* ctx)
      : OpKernel(ctx), frame_(kName) {
    OP_REQUIRES_OK(ctx, CheckInstructionSet());
    OP_REQUIRES_OK(ctx, frame_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("window", &window_));
    OP_REQUIRES_OK(ctx, CheckIntegers(kName, "window", window_, frame_.axes(),
                                      1, kMostOfTile));
    OP_REQUIRES_OK(ctx, image_.Read(ctx, "image_"));
    OP_REQUIRES_OK(ctx, maps_.Read(ctx, "maps_"));
    OP_REQUIRES_OK(ctx, kernel_.Read(ctx, "kernel_"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& dy = ctx->input(1);
    std::vector<int64_t> all = window_;
    all.push_back(x.dims() ? x.dim_size(x.dims() - 1) : 0);
    all.push_back(dy.dims() ? dy.dim_size(dy.dims() - 1) : 0);
    TensorShape shape, maps;
    OP_REQUIRES_OK(ctx, MakeShape(kName, all, &shape));
    Pass pass = {
        {}, false, image_.program(), maps_.program(), kernel_.program()};
    Geometry& g = pass.geometry;
    OP_REQUIRES_OK(ctx, frame_.Fill(x.shape(), shape, false, &g));
    g.points = pass.image.outputs;
    OP_REQUIRES_OK(ctx, frame_.Shape(g, false, &maps));
    OP_REQUIRES(
        ctx, maps == dy.shape(),
        absl::InvalidArgumentError(absl::StrCat(
            kName, ": Expected feature maps of shape ", maps.DebugString(),
            ". Received shape: ", dy.shape().DebugString())));
    const Count tile = {g.tile(0), g.tile(1), g.tile(2)};
    OP_REQUIRES_OK(ctx,
                   CheckProgram(pass.image, "image", Pixels(tile), g.points));
    OP_REQUIRES_OK(ctx,
                   CheckProgram(pass.maps, "maps", Pixels(g.step), g.points));
    OP_REQUIRES_OK(
        ctx, CheckProgram(pass.kernel, "kernel", g.points, Pixels(g.window)));
    pass.image.along_axis = bilinear::ReadsAlongAxis(pass.image, tile);
    pass.maps.along_axis = bilinear::ReadsAlongAxis(pass.maps, g.step);
    Tensor* dk = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &dk));
    if (dk->NumElements() == 0) return;
    if (dy.NumElements() == 0 || x.NumElements() == 0) {
      dk->flat<float>().setZero();
      return;
    }
    OP_REQUIRES_OK(ctx, CheckWorkspace(g));
    const Passes& passes = simd::Best().bilinear;
    OpPool pool(ctx);
    const GradientSizes sizes(bilinear::ExtentOf(pass, pool.threads()),
                              simd::Best().set);
    const Workspace scratch(sizes.scratch);
    OP_REQUIRES(ctx, scratch.data() != nullptr, NoMemory(sizes.scratch));
    passes.gradient(pass, sizes, {Data(x), Data(dy), Data(dk)}, scratch.data(),
                    pool);
  }

 private:
  static constexpr char kName[] = "BilinearKernelGradient";

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
    name->scalar<tensorflow::tstring>()() = simd::Best().set.name;
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
