// The one loop behind both ops: a joined tensor on one side, its shards on the
// other.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_SHARD_COPY_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_SHARD_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/kernels/convert.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {

// Around the channel axis, rows of `width * inner` numbers stand side by side:
// [batch, height, width, channels] has inner = 1, and [batch, channels,
// height, width] has inner = height * width.
struct Layout {
  Layout(const tensorflow::TensorShape& shape, int axis);

  int axis;       // counted from the front
  int64_t outer;  // rows
  int64_t inner;  // numbers per channel of a row
};

class ShardCopy {
 public:
  enum Direction { kJoin, kCut };

  // `whole` is the joined tensor. Every tensor must outlive this object.
  ShardCopy(Direction direction, const Layout& layout,
            const tensorflow::Tensor& whole);

  // Adds the next shard along the axis.
  void Add(const tensorflow::Tensor& shard);

  // Copies, on as many of the device's threads as the size is worth.
  void Run(tensorflow::OpKernelContext* ctx) const;

 private:
  struct Piece {
    char* data;
    int64_t item;  // bytes per number
    int64_t size;  // numbers per row
    ConvertFn convert;
  };

  // Calls `move(i, src, from, dst, to, n)` for each run of `n` numbers that
  // lie together on both sides, of the numbers [begin, end) of the joined
  // tensor. `i` is the piece; `from` and `to` are bytes per number.
  template <typename Move>
  void ForEachRun(int64_t begin, int64_t end, Move move) const;

  // Copies the numbers [begin, end) of the joined tensor.
  void CopyRange(int64_t begin, int64_t end) const;

  // The same by streaming stores, for kJoin.
  void StreamRange(int64_t begin, int64_t end) const;

  const Direction direction_;
  const Layout layout_;
  const tensorflow::DataType dtype_;
  char* const whole_;
  const int64_t item_;
  int64_t row_ = 0;  // numbers per row of the joined tensor
  std::vector<Piece> pieces_;
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_SHARD_COPY_H_
