// The kernels of the ops on pieces of tensors: weights that travel together.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/ops/cuts.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Calls `run(k, offset, length)` for every run of numbers of a tensor that is
// one holder's, in the order in which they are in its row: of tensor `k`, from
// this number on, so many.
template <typename Run>
void ForEachRun(const Cuts& cuts, size_t holder, const Run& run) {
  for (size_t k = 0; k < cuts.shapes.size(); ++k) {
    int64_t before = 0, size = 0;
    for (size_t h = 0; h < cuts.holders(); ++h) {
      if (h < holder) before += cuts.width(k, h);
      size += cuts.width(k, h);
    }
    const int64_t length = cuts.width(k, holder) * cuts.inner[k];
    if (length == 0) continue;
    if (length == size * cuts.inner[k]) {
      run(k, 0, cuts.rows[k] * length);
      continue;
    }
    for (int64_t row = 0; row < cuts.rows[k]; ++row) {
      run(k, (row * size + before) * cuts.inner[k], length);
    }
  }
}

// A holder's row of numbers, which is in pieces, from its begin to its end.
class Row {
 public:
  // Pieces of so many bytes.
  void Add(char* bytes, int64_t size) { pieces_.push_back({bytes, size}); }

  // Calls `part(bytes, done, size)` for what the next bytes of it are: all in
  // one piece, or the end of one and the begin of the next.
  template <typename Part>
  void Next(int64_t size, const Part& part) {
    for (int64_t done = 0; done < size;) {
      while (at_ == pieces_[piece_].size) ++piece_, at_ = 0;
      const int64_t now = std::min(size - done, pieces_[piece_].size - at_);
      part(pieces_[piece_].bytes + at_, done, now);
      at_ += now;
      done += now;
    }
  }

 private:
  struct Piece {
    char* bytes;
    int64_t size;
  };
  std::vector<Piece> pieces_;
  size_t piece_ = 0;
  int64_t at_ = 0;
};

char* BytesOf(const Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

class ToPiecesOp : public OpKernel {
 public:
  explicit ToPiecesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCuts(ctx, "ToPieces", &cuts_));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList tensors;
    OP_REQUIRES_OK(ctx, ctx->input_list("tensors", &tensors));
    bool good = static_cast<size_t>(tensors.size()) == cuts_.shapes.size() &&
                static_cast<size_t>(ctx->num_outputs()) ==
                    cuts_.holders() * static_cast<size_t>(cuts_.count);
    for (int k = 0; good && k < tensors.size(); ++k) {
      good = tensors[k].shape() == cuts_.shapes[k];
    }
    OP_REQUIRES(ctx, good,
                absl::InvalidArgumentError(
                    "ToPieces: Expected tensors of the shapes in `shapes`, and "
                    "as many outputs as there are pieces. Received others"));
    const int64_t each = tensorflow::DataTypeSize(ctx->input_dtype(0));
    int output = 0;
    for (size_t h = 0; h < cuts_.holders(); ++h) {
      Row row;
      for (int64_t i = 0; i < cuts_.count; ++i) {
        const int64_t size = cuts_.Begin(h, i + 1) - cuts_.Begin(h, i);
        Tensor* piece = nullptr;
        OP_REQUIRES_OK(
            ctx, ctx->allocate_output(output++, TensorShape({size}), &piece));
        row.Add(BytesOf(*piece), size * each);
      }
      ForEachRun(cuts_, h, [&](size_t k, int64_t offset, int64_t length) {
        const char* from = BytesOf(tensors[k]) + offset * each;
        row.Next(length * each, [from](char* to, int64_t done, int64_t size) {
          std::memcpy(to, from + done, size);
        });
      });
    }
  }

 private:
  Cuts cuts_;
};

class FromPiecesOp : public OpKernel {
 public:
  explicit FromPiecesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCuts(ctx, "FromPieces", &cuts_));
  }

  void Compute(OpKernelContext* ctx) override {
    const int64_t each = tensorflow::DataTypeSize(ctx->input_dtype(0));
    const size_t count = cuts_.count;
    bool good =
        static_cast<size_t>(ctx->num_outputs()) == cuts_.shapes.size() &&
        static_cast<size_t>(ctx->num_inputs()) == cuts_.holders() * count;
    for (size_t h = 0; good && h < cuts_.holders(); ++h) {
      int64_t total = 0;
      for (size_t i = 0; i < count; ++i) {
        total += ctx->input(h * count + i).NumElements();
      }
      good = total == cuts_.totals[h];
    }
    OP_REQUIRES(ctx, good,
                absl::InvalidArgumentError(
                    "FromPieces: Expected pieces with as many numbers as each "
                    "holder has of `shapes`. Received others"));
    std::vector<char*> tensors;
    for (int k = 0; k < ctx->num_outputs(); ++k) {
      Tensor* tensor = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(k, cuts_.shapes[k], &tensor));
      tensors.push_back(BytesOf(*tensor));
    }
    for (size_t h = 0; h < cuts_.holders(); ++h) {
      Row row;
      for (size_t i = 0; i < count; ++i) {
        const Tensor& piece = ctx->input(h * count + i);
        row.Add(BytesOf(piece), piece.NumElements() * each);
      }
      ForEachRun(cuts_, h, [&](size_t k, int64_t offset, int64_t length) {
        char* to = tensors[k] + offset * each;
        row.Next(length * each, [to](char* from, int64_t done, int64_t size) {
          std::memcpy(to + done, from, size);
        });
      });
    }
  }

 private:
  Cuts cuts_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ToPieces").Device(tensorflow::DEVICE_CPU), ToPiecesOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>FromPieces").Device(tensorflow::DEVICE_CPU), FromPiecesOp);

}  // namespace
}  // namespace tf_convpar
