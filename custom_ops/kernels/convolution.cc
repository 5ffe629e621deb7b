// The kernel of convolutions for inference: products of matrices, by panels of
// the kernel that may be kept, and what follows in the same pass.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/remembered.h"
#include "custom_ops/kernels/window.h"
#include "custom_ops/kernels/workspace.h"
#include "custom_ops/windows/sizes.h"
#include "custom_ops/windows/unfold.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using bilinear::Passes;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Pixels of feature maps that a cache holds while all filters pass by.
constexpr int64_t kBand = 56;
// Numbers of a kernel up to which it is the kernel that a cache holds, while
// some pixels pass by that the registers hold.
constexpr int64_t kSmall = 64 << 10;
// Lines of feature maps that are shorter leave most of a processor idle.
constexpr int64_t kShort = 7;
static_assert(kBand <= bilinear::kMostRows);

const float* Floats(const Tensor& x) { return x.flat<float>().data(); }

// Images, the panels of a kernel, and the feature maps.
struct Product {
  windows::Sizes of;
  int64_t rows, filters;
  const float *x, *panels;
  bilinear::Ending ending;
  float* y;

  int64_t depth() const {
    return of.window_height * of.window_width * of.channels;
  }

  // Some pixels of all feature maps, and some panels of filters.
  void Run(int64_t begin, int64_t end, int64_t first, int64_t last) const {
    const int64_t across = of.window_width * of.channels;
    const int64_t maps = of.out_height * of.out_width;
    if (of.window_height * of.window_width * of.stride == 1 && !of.Pads()) {
      RunBands(begin, end, first, last, {x, rows, 0, across, 1, 0, across}, 0);
    } else if (of.out_width < kShort) {
      const Workspace own(kBand * depth());
      for (int64_t r = begin; r < end; r += kBand) {
        const int64_t count = std::min(kBand, end - r);
        windows::Unfold(of, x, r, r + count, own.data());
        RunBands(0, count, first, last,
                 {own.data(), count, 0, depth(), 1, 0, depth()}, r);
      }
    } else {
      const bool pads = of.Pads();
      const windows::Sizes in = pads ? of.WithZeros() : of;
      const int64_t width = in.width * in.channels;
      const int64_t image = of.height * of.width * of.channels;
      const Workspace own(pads ? in.height * width : 0);
      while (begin < end) {
        const int64_t number = begin / maps, pixel = begin % maps;
        const int64_t until = std::min(maps, pixel + end - begin);
        const float* a = x + number * image;
        if (pads) {
          windows::Pad(of, a, own.data());
          a = own.data();
        }
        RunBands(pixel, until, first, last,
                 {a, of.out_width, of.stride * width, of.stride * of.channels,
                  of.window_height, width, across},
                 number * maps);
        begin += until - pixel;
      }
    }
  }

  // Rows of the lines, of which the first is that pixel of all feature maps.
  void RunBands(int64_t begin, int64_t end, int64_t first, int64_t last,
                const bilinear::Lines& lines, int64_t pixel) const {
    bilinear::ProductPart part = {};
    part.first_panel = first, part.panels = last - first;
    part.columns = filters, part.ending = ending;
    if (ending.summand != nullptr) part.ending.summand += pixel * filters;
    const int64_t most =
        depth() * filters <= kSmall ? bilinear::BestPasses()->set.rows : kBand;
    // Whole lines, or equal pieces of them.
    const int64_t pieces = (lines.rows + most - 1) / most;
    const int64_t band = pieces == 1 ? most / lines.rows * lines.rows
                                     : (lines.rows + pieces - 1) / pieces;
    for (part.begin = begin; part.begin < end; part.begin = part.end) {
      part.end = std::min(part.begin + band, end);
      bilinear::BestPasses()->product(part, lines, panels, y + pixel * filters);
    }
  }
};

class ConvolutionOp : public tensorflow::OpKernel {
 public:
  explicit ConvolutionOp(tensorflow::OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    std::string name;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &name));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("remember", &remember_));
    OP_REQUIRES_OK(ctx, ReadPadded(ctx, "Convolution", &window_));
    activation_ = channels::Named(name);
    OP_REQUIRES(ctx, bilinear::BestPasses() != nullptr,
                absl::InvalidArgumentError(
                    absl::StrCat("Convolution: Expected ", bilinear::kWidest,
                                 " to name an instruction set")));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &x = ctx->input(0), &kernel = ctx->input(1);
    const Tensor &scale = ctx->input(2), &offset = ctx->input(3);
    const Tensor& summand = ctx->input(4);
    OP_REQUIRES(
        ctx,
        x.dims() == 4 && kernel.dims() == 4 &&
            kernel.dim_size(2) == x.dim_size(3),
        absl::InvalidArgumentError(absl::StrCat(
            "Convolution: Expected images [batch, height, width, channels] and "
            "a kernel [height, width, channels, filters]. Received ",
            x.shape().DebugString(), " and ", kernel.shape().DebugString())));
    const int64_t filters = kernel.dim_size(3);
    for (const Tensor* vector : {&scale, &offset}) {
      OP_REQUIRES(
          ctx,
          vector->dims() == 1 &&
              (vector->dim_size(0) == filters || vector->dim_size(0) == 0),
          absl::InvalidArgumentError(absl::StrCat(
              "Convolution: Expected a scale and an offset of ", filters,
              " values or none. Received ", scale.shape().DebugString(),
              " and ", offset.shape().DebugString())));
    }
    const windows::Sizes of =
        window_.Over(x.dim_size(1), x.dim_size(2), x.dim_size(3),
                     kernel.dim_size(0), kernel.dim_size(1));
    const TensorShape shape(
        {x.dim_size(0), of.out_height, of.out_width, filters});
    const bool adds = summand.dims() != 1 || summand.NumElements() > 0;
    OP_REQUIRES(ctx, !adds || summand.shape() == shape,
                absl::InvalidArgumentError(absl::StrCat(
                    "Convolution: Expected a summand of the shape of the "
                    "feature maps, ",
                    shape.DebugString(), ". Received ",
                    summand.shape().DebugString())));
    Tensor* y = nullptr;
    // Where nobody else needs the summand, the feature maps take its place.
    OP_REQUIRES_OK(ctx,
                   ctx->forward_input_or_allocate_output({4}, 0, shape, &y));
    if (y->NumElements() == 0) return;
    const int64_t depth = kernel.NumElements() / filters;
    OP_REQUIRES(ctx, depth > 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "Convolution: Expected a kernel of at least one number for "
                    "each filter. Received ",
                    kernel.shape().DebugString())));
    const int64_t width = bilinear::BestPasses()->set.panel();
    const int64_t panels = (filters + width - 1) / width;
    const std::shared_ptr<const float> packed =
        Packed(kernel, scale, filters, panels * width * depth);
    OP_REQUIRES(ctx, packed != nullptr,
                absl::ResourceExhaustedError(
                    "Convolution: Expected memory for the kernel's panels. "
                    "Received none"));
    std::vector<float> padded;
    if (offset.NumElements() > 0) {
      padded.assign(panels * width, 0.0f);
      std::copy_n(Floats(offset), filters, padded.data());
    }
    Run(ctx,
        {of,
         y->NumElements() / filters,
         filters,
         Floats(x),
         packed.get(),
         {padded.empty() ? nullptr : padded.data(),
          adds ? Floats(summand) : nullptr, activation_},
         y->flat<float>().data()},
        panels);
  }

 private:
  // Panels of the kernel, each filter times its factor; null without memory
  // for so many floats.
  std::shared_ptr<const float> Packed(const Tensor& kernel, const Tensor& scale,
                                      int64_t filters, int64_t floats) {
    if (remember_) {
      std::shared_ptr<const float> found = remembered_.Find({kernel, scale});
      if (found != nullptr) return found;
    }
    const std::shared_ptr<float> made = Lasting(floats);
    if (made == nullptr) return nullptr;
    bilinear::BestPasses()->pack(
        Floats(kernel), kernel.NumElements() / filters, filters,
        scale.NumElements() == 0 ? nullptr : Floats(scale), made.get());
    if (remember_) remembered_.Keep({kernel, scale}, made);
    return made;
  }

  static void Run(OpKernelContext* ctx, const Product& of, int64_t panels) {
    const int threads =
        ctx->device()->tensorflow_cpu_worker_threads()->num_threads;
    // Some thirty products in a cycle.
    const int64_t width = bilinear::BestPasses()->set.panel();
    const int64_t cycles = of.depth() * width / 30 + 1;
    if (of.rows >= kBand * threads) {
      InParallel(
          ctx, of.rows, cycles * panels,
          [&](int64_t begin, int64_t end) { of.Run(begin, end, 0, panels); });
      return;
    }
    InParallel(ctx, panels, cycles * of.rows, [&](int64_t begin, int64_t end) {
      of.Run(0, of.rows, begin, end);
    });
  }

  bool remember_;
  windows::Padded window_;
  channels::Activation activation_;
  Remembered remembered_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>Convolution").Device(tensorflow::DEVICE_CPU),
    ConvolutionOp);

}  // namespace
}  // namespace tf_convpar
