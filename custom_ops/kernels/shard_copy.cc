#include "custom_ops/kernels/shard_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "custom_ops/kernels/convert.h"
#include "custom_ops/kernels/in_parallel.h"
#include "custom_ops/kernels/stream.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/overflow.h"

namespace tf_convpar {
namespace {

char* Data(const tensorflow::Tensor& tensor) {
  // Only outputs are written to; inputs share the type to share the loop.
  return const_cast<char*>(tensor.tensor_data().data());
}

}  // namespace

Layout::Layout(const tensorflow::TensorShape& shape, int axis)
    : axis(axis < 0 ? shape.dims() - 1 : axis), outer(1), inner(1) {
  using tensorflow::MultiplyWithoutOverflow;
  for (int d = 0; d < this->axis; ++d) {
    outer = MultiplyWithoutOverflow(outer, shape.dim_size(d));
  }
  for (int d = this->axis + 1; d < shape.dims(); ++d) {
    inner = MultiplyWithoutOverflow(inner, shape.dim_size(d));
  }
  // Beside a size of 0 others may be any, and there is nothing to copy.
  if (outer <= 0 || inner <= 0) outer = inner = 0;
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
  pieces_.push_back({Data(shard), tensorflow::DataTypeSize(dtype), size,
                     direction_ == kJoin ? GetConvertFn(dtype, dtype_)
                                         : GetConvertFn(dtype_, dtype)});
  row_ += size;
}

template <typename Move>
void ShardCopy::ForEachRun(int64_t begin, int64_t end, Move move) const {
  int64_t row = begin / row_;
  int64_t skip = begin - row * row_;
  size_t i = 0;
  for (; skip >= pieces_[i].size; ++i) skip -= pieces_[i].size;
  char* joined = whole_ + begin * item_;
  while (begin < end) {
    const Piece& piece = pieces_[i];
    const int64_t n = std::min(piece.size - skip, end - begin);
    char* const part = piece.data + (row * piece.size + skip) * piece.item;
    if (direction_ == kJoin) {
      move(i, part, piece.item, joined, item_, n);
    } else {
      move(i, joined, item_, part, piece.item, n);
    }
    begin += n;
    joined += n * item_;
    skip = 0;
    if (++i == pieces_.size()) {
      i = 0;
      ++row;
    }
  }
}

void ShardCopy::CopyRange(int64_t begin, int64_t end) const {
  ForEachRun(
      begin, end,
      [this](size_t i, const char* src, int64_t from, char* dst, int64_t to,
             int64_t n) { pieces_[i].convert(src, dst, n); });
}

void ShardCopy::StreamRange(int64_t begin, int64_t end) const {
  StreamWriter writer(whole_ + begin * item_);
  ForEachRun(begin, end,
             [this, &writer](size_t i, const char* src, int64_t from, char* dst,
                             int64_t to, int64_t n) {
               writer.Append(pieces_[i].convert, src, from, to, n);
             });
  writer.Finish();
}

void ShardCopy::Run(tensorflow::OpKernelContext* ctx) const {
  const int64_t total = layout_.outer * row_;
  if (total == 0) return;
  int64_t shard_bytes = 0;  // per row
  for (const Piece& piece : pieces_) shard_bytes += piece.size * piece.item;
  const int64_t whole_bytes = row_ * item_;
  // Cutting writes to too many places for it, and where fewer bytes are
  // written than read there is little to save.
  const bool stream = direction_ == kJoin && whole_bytes >= shard_bytes &&
                      whole_bytes * layout_.outer >= kStreamBytes;
  // Bound by memory: about four bytes in or out per cycle.
  const int64_t cycles =
      std::max<int64_t>(1, (whole_bytes + shard_bytes) / (4 * row_));
  InParallel(ctx, total, cycles, [this, stream](int64_t begin, int64_t end) {
    stream ? StreamRange(begin, end) : CopyRange(begin, end);
  });
}

}  // namespace tf_convpar
