#include "custom_ops/kernels/shard_copy.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "custom_ops/kernels/stream.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_convpar {
namespace {

char* Data(const tensorflow::Tensor& tensor) {
  // Only outputs are written to; inputs share the type to share the loop.
  return const_cast<char*>(tensor.tensor_data().data());
}

}  // namespace

Layout::Layout(const tensorflow::TensorShape& shape, int axis)
    : axis(axis < 0 ? shape.dims() - 1 : axis), outer(1), inner(1) {
  for (int d = 0; d < this->axis; ++d) outer *= shape.dim_size(d);
  for (int d = this->axis + 1; d < shape.dims(); ++d) {
    inner *= shape.dim_size(d);
  }
}

ShardCopy::ShardCopy(Direction direction, const Layout& layout,
                     const tensorflow::Tensor& whole)
    : direction_(direction),
      layout_(layout),
      dtype_(whole.dtype()),
      whole_(Data(whole)),
      item_(tensorflow::DataTypeSize(whole.dtype())) {}

void ShardCopy::Add(const tensorflow::Tensor& shard) {
  const int64_t size = shard.dim_size(layout_.axis) * layout_.inner;
  if (size == 0) return;
  const auto dtype = shard.dtype();
  pieces_.push_back({Data(shard), tensorflow::DataTypeSize(dtype), row_, size,
                     direction_ == kJoin ? GetConvertFn(dtype, dtype_)
                                         : GetConvertFn(dtype_, dtype),
                     dtype == dtype_});
  row_ += size;
}

void ShardCopy::CopyRange(int64_t begin, int64_t end, bool stream) const {
  int64_t row = begin / row_;
  int64_t at = begin - row * row_;
  auto piece = pieces_.begin();
  while (at >= piece->start + piece->size) ++piece;
  while (begin < end) {
    const int64_t skip = at - piece->start;
    const int64_t n = std::min(piece->size - skip, end - begin);
    const char* src = whole_ + begin * item_;
    char* dst = piece->data + (row * piece->size + skip) * piece->item;
    int64_t from = item_, to = piece->item;
    if (direction_ == kJoin) {
      src = std::exchange(dst, const_cast<char*>(src));
      std::swap(from, to);
    }
    if (stream && n * to >= kStreamRunBytes) {
      StreamConvert(piece->convert, src, from, dst, to, n, piece->copy);
    } else {
      piece->convert(src, dst, n);
    }
    begin += n;
    at += n;
    if (++piece == pieces_.end()) {
      piece = pieces_.begin();
      at = 0;
      ++row;
    }
  }
  if (stream) StreamFence();
}

void ShardCopy::Run(tensorflow::OpKernelContext* ctx) const {
  const int64_t total = layout_.outer * row_;
  if (total == 0) return;
  int64_t read = 0, written = 0;  // bytes of a row
  for (const Piece& piece : pieces_) {
    read += piece.size * piece.item;
    written += piece.size * item_;
  }
  if (direction_ == kCut) std::swap(read, written);
  const bool stream = written * layout_.outer >= kStreamTotalBytes;
  // Bound by memory: about four bytes in or out per cycle.
  const int64_t cycles =
      std::max<int64_t>(1, (read + written) / (4 * row_));
  using Pool = tensorflow::thread::ThreadPool;
  ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
      total, Pool::SchedulingParams::Adaptive(cycles),
      [this, stream](int64_t begin, int64_t end) {
        CopyRange(begin, end, stream);
      });
}

}  // namespace tf_convpar
