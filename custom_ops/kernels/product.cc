#include "custom_ops/kernels/product.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "custom_ops/bilinear/passes.h"
#include "custom_ops/bilinear/sizes.h"
#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/joined.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/workspace.h"
#include "custom_ops/simd/kernels.h"
#include "custom_ops/windows/sizes.h"
#include "custom_ops/windows/unfold.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_convpar {
namespace {

using channels::Joined;

// Pixels of feature maps that a cache holds while all filters pass by.
constexpr int64_t kBand = 56;
// Pixels below which a thread reads the kernel for too little.
constexpr int64_t kLeastPixels = 49;
// Lines of feature maps that are shorter leave most of a processor idle.
constexpr int64_t kShort = 7;
static_assert(kBand <= bilinear::kMostRows);

// So many floats from row to row, and the same columns of all rows lie in the
// same lines of the nearest cache, which then holds a few of them only. Rows
// that are copied have as much as a line between them.
constexpr int64_t kSameLines = 1024, kLine = 16;

// Rows below which a kernel is streamed, and the numbers from which on.
constexpr int64_t kFewRows = 5, kLarge = 1 << 20;
// Parts of the kernel's depth, of which each is summed by itself: as many
// whatever the number of threads, so that no digit depends on it.
constexpr int64_t kParts = 8;

struct Range {
  int64_t begin, end;
};

// Whether windows are written out as rows; else lines of the images are read.
bool ByRows(const Product& of) {
  return of.OfPixels() ? of.images->AsTheyAre() == nullptr
                       : of.of.out_width < kShort ||
                             of.of.stride * of.of.channels % kSameLines == 0;
}

// Floats from row to row where rows are copied.
int64_t Apart(int64_t depth) {
  return depth % kSameLines == 0 ? depth + kLine : depth;
}

// The windows of some pixels of feature maps, so many floats apart.
void WriteRows(const Product& of, int64_t begin, int64_t end, float* to,
               int64_t apart) {
  const int64_t each = apart == of.depth() ? end - begin : 1;
  for (int64_t r = begin; r < end; r += each, to += apart) {
    if (of.OfPixels()) {
      of.images->Rows(r, r + each, to);
    } else {
      windows::Unfold(of.of, of.images->AsTheyAre(), r, r + each, to);
    }
  }
}

// Rows of the lines, of which the first is that pixel of all feature maps.
void RunBands(const Product& of, Range rows, Range panels,
              const bilinear::Lines& lines, int64_t pixel) {
  bilinear::ProductPart part = {};
  part.first_panel = panels.begin, part.panels = panels.end - panels.begin;
  part.columns = of.filters, part.ending = of.ending;
  if (of.ending.summand != nullptr) part.ending.summand += pixel * of.filters;
  // Whole lines, or equal pieces of them.
  const int64_t pieces = (lines.rows + kBand - 1) / kBand;
  const int64_t band = pieces == 1 ? kBand / lines.rows * lines.rows
                                   : (lines.rows + pieces - 1) / pieces;
  for (part.begin = rows.begin; part.begin < rows.end; part.begin = part.end) {
    part.end = std::min(part.begin + band, rows.end);
    simd::Best().bilinear.product(part, lines, of.panels,
                                  of.y + pixel * of.filters);
  }
}

absl::Status RunRows(const Product& of, Range rows, Range panels) {
  const int64_t depth = of.depth(), apart = Apart(depth);
  const int64_t floats =
      Numbers({std::min(kBand, rows.end - rows.begin), apart});
  const Workspace own(floats);
  if (own.data() == nullptr) return NoMemory(floats);
  for (int64_t r = rows.begin; r < rows.end; r += kBand) {
    const int64_t count = std::min(kBand, rows.end - r);
    WriteRows(of, r, r + count, own.data(), apart);
    RunBands(of, {0, count}, panels, {own.data(), count, 0, apart, 1, 0, depth},
             r);
  }
  return absl::OkStatus();
}

absl::Status RunLines(const Product& of, Range rows, Range panels) {
  const windows::Sizes& sizes = of.of;
  const int64_t maps = sizes.out_height * sizes.out_width;
  const int64_t across = sizes.window_width * sizes.channels;
  const bool pads = sizes.Pads();
  const windows::Sizes in = pads ? sizes.WithZeros() : sizes;
  const int64_t width = in.width * in.channels;
  const int64_t floats = pads ? Numbers({in.height, in.width, in.channels}) : 0;
  const Workspace own(floats);
  if (pads && own.data() == nullptr) return NoMemory(floats);
  while (rows.begin < rows.end) {
    const int64_t number = rows.begin / maps, pixel = rows.begin % maps;
    const int64_t until = std::min(maps, pixel + rows.end - rows.begin);
    // From the first line of feature maps on.
    const int64_t line = pixel / sizes.out_width;
    const int64_t lines = (until - 1) / sizes.out_width - line + 1;
    const float* a = of.images->AsTheyAre() +
                     number * sizes.height * sizes.width * sizes.channels;
    if (pads) {
      const int64_t needed = (lines - 1) * sizes.stride + sizes.window_height;
      windows::CopyPart(sizes, a, line * sizes.stride - sizes.top, -sizes.left,
                        needed, in.width, own.data());
      a = own.data();
    } else {
      a += line * sizes.stride * width;
    }
    const int64_t first = line * sizes.out_width;
    RunBands(
        of, {pixel - first, until - first}, panels,
        {a, sizes.out_width, sizes.stride * width,
         sizes.stride * sizes.channels, sizes.window_height, width, across},
        number * maps + first);
    rows.begin += until - pixel;
  }
  return absl::OkStatus();
}

// Some pixels of all feature maps, and some panels of filters.
absl::Status Run(const Product& of, Range rows, Range panels) {
  const int64_t depth = of.depth();
  const bool many = rows.end - rows.begin >= kBand;
  if (ByRows(of) || (of.OfPixels() && many && Apart(depth) != depth)) {
    return RunRows(of, rows, panels);
  }
  if (!of.OfPixels()) return RunLines(of, rows, panels);
  RunBands(of, rows, panels,
           {of.images->AsTheyAre(), of.rows, 0, depth, 1, 0, depth}, 0);
  return absl::OkStatus();
}

// `run`, of which any thread may fail, in parallel.
template <typename F>
absl::Status RunAll(tensorflow::OpKernelContext* ctx, int64_t total,
                    int64_t cycles, const F& run, int64_t least = 1) {
  absl::Mutex mutex;
  absl::Status all;
  InParallel(
      ctx, total, cycles,
      [&](int64_t begin, int64_t end) {
        const absl::Status status = run(begin, end);
        if (status.ok()) return;
        const absl::MutexLock lock(&mutex);
        all.Update(status);
      },
      least);
  return all;
}

// All pixels, and some panels for each thread. What has to be copied of the
// images is copied once.
absl::Status RunPanels(tensorflow::OpKernelContext* ctx, Product of,
                       int64_t panels, int64_t cycles) {
  const auto run = [&](const Product& of) {
    return RunAll(ctx, panels, cycles * of.rows,
                  [&](int64_t begin, int64_t end) {
                    return Run(of, {0, of.rows}, {begin, end});
                  });
  };
  const int64_t depth = of.depth();
  const bool rows = ByRows(of);
  if (!rows && !of.of.Pads()) return run(of);
  const windows::Sizes in = of.of.WithZeros();
  const int64_t images = of.rows / (in.out_height * in.out_width);
  const int64_t floats =
      rows ? Numbers({of.rows, depth})
           : Numbers({images, in.height, in.width, in.channels});
  const Workspace own(floats);
  if (own.data() == nullptr) return NoMemory(floats);
  if (rows) {
    InParallel(ctx, of.rows, depth / 4, [&](int64_t begin, int64_t end) {
      WriteRows(of, begin, end, own.data() + begin * depth, depth);
    });
    of.of = {depth, 1, of.rows, 1, of.rows, 1, 1, 1, 0, 0};
  } else {
    const float* from = of.images->AsTheyAre();
    const int64_t each = of.of.height * of.of.width * of.of.channels;
    const int64_t image = floats / images;
    for (int64_t i = 0; i < images; ++i) {
      windows::Pad(of.of, from + i * each, own.data() + i * image);
    }
    of.of = in;
  }
  const Joined copied({{own.data(), of.of.channels}}, {}, images,
                      of.of.height * of.of.width);
  of.images = &copied;
  return run(of);
}

}  // namespace

absl::Status Multiply(tensorflow::OpKernelContext* ctx, const Product& of) {
  const int threads =
      ctx->device()->tensorflow_cpu_worker_threads()->num_threads;
  const int64_t width = simd::Best().set.panel();
  const int64_t panels = (of.filters + width - 1) / width;
  // Some thirty products in a cycle.
  const int64_t cycles = of.depth() * width / 30 + 1;
  if (of.rows < kBand * threads) return RunPanels(ctx, of, panels, cycles);
  return RunAll(
      ctx, of.rows, cycles * panels,
      [&](int64_t begin, int64_t end) {
        return Run(of, {begin, end}, {0, panels});
      },
      kLeastPixels);
}

bool Streams(const Product& of) {
  return of.OfPixels() && of.rows < kFewRows &&
         of.depth() * of.filters >= kLarge && of.images->AsTheyAre() != nullptr;
}

absl::Status MultiplyStreamed(tensorflow::OpKernelContext* ctx,
                              const Product& of, const float* kernel,
                              const float* scale) {
  const int64_t depth = of.depth(), numbers = of.rows * of.filters;
  const Workspace own(kParts * numbers);
  if (own.data() == nullptr) return NoMemory(kParts * numbers);
  float* const sums = own.data();
  InParallel(ctx, kParts, depth * of.filters / kParts / 8,
             [&](int64_t begin, int64_t end) {
               for (int64_t part = begin; part < end; ++part) {
                 const int64_t first = part * depth / kParts;
                 const int64_t last = (part + 1) * depth / kParts;
                 simd::Best().channels.streamed(
                     of.images->AsTheyAre() + first, depth, of.rows,
                     kernel + first * of.filters, last - first, of.filters,
                     sums + part * numbers);
               }
             });
  for (int64_t part = 1; part < kParts; ++part) {
    for (int64_t i = 0; i < numbers; ++i) sums[i] += sums[part * numbers + i];
  }
  const std::vector<float> ones(of.filters, 1.0f), zeros(of.filters);
  std::vector<const float*> scales = {scale == nullptr ? ones.data() : scale};
  std::vector<const float*> maps = {sums};
  if (of.ending.summand != nullptr) {
    scales.push_back(ones.data());
    maps.push_back(of.ending.summand);
  }
  const channels::Scaled end(
      scales, of.ending.offset == nullptr ? zeros.data() : of.ending.offset,
      of.filters, of.ending.activation);
  end.Run(maps, 0, of.rows, of.y);
  return absl::OkStatus();
}

}  // namespace tf_convpar
