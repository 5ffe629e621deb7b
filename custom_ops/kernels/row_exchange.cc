// The kernels of the ops by which devices exchange rows: statistics, or
// weights.
//
// Devices run the same op, each in its own part of a step. A device sends its
// row to all others as the op begins, and the op ends with the last of theirs.

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "custom_ops/kernels/peers.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/hash.h"

namespace tf_convpar {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

class PeersListenOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const std::string host(ctx->input(0).scalar<tstring>()());
    int64_t id = 0;
    int port = 0;
    Peers::Get().Listen(host, &id, &port);
    Tensor* address;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tensorflow::TensorShape({2}), &address));
    address->vec<int64_t>()(0) = id;
    address->vec<int64_t>()(1) = port;
  }
};

class PeersConnectOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const auto address = ctx->input(0).vec<int64_t>();
    const std::string host(ctx->input(1).scalar<tstring>()());
    Tensor* connected;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &connected));
    connected->scalar<bool>()() =
        Peers::Get().Connect(address(0), host, static_cast<int>(address(1)));
  }
};

// The same on all devices that exchange rows, and in no other exchange of a
// step: the scope that they have made an op in, and by which it is known where
// functions were inlined.
uint64_t ExchangeOf(absl::string_view name) {
  const absl::string_view scope = name.substr(0, name.rfind('/'));
  return tensorflow::Hash64(scope.data(), scope.size());
}

absl::Status Cancelled() {
  return absl::CancelledError("The step was cancelled.");
}

class RowsOp : public AsyncOpKernel {
 public:
  explicit RowsOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx), exchange_(ExchangeOf(name())) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("peers", &peers_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    bool weights = false;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weights", &weights));
    lane_ = weights ? Lane::kWeights : Lane::kStatistics;
    const int count = static_cast<int>(peers_.size());
    OP_REQUIRES(ctx, 0 <= number_ && number_ < count,
                absl::InvalidArgumentError(absl::StrCat(
                    type_string(), ": Expected number to be one of ", count,
                    " peers. Received: ", number_)));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const RowKey key{static_cast<uint64_t>(ctx->step_id()), exchange_};
    const int count = static_cast<int>(peers_.size());
    for (int i = 0; i < count; ++i) {
      const Tensor& row = RowFor(i, ctx);
      if (i == number_ || row.NumElements() == 0) continue;
      OP_REQUIRES_OK_ASYNC(ctx, Peers::Get().Send(peers_[i], lane_, key, row),
                           done);
    }
    auto* const cancellation = ctx->cancellation_manager();
    const auto token = cancellation != nullptr
                           ? cancellation->get_cancellation_token()
                           : tensorflow::CancellationToken();
    const auto rows = std::make_shared<Rows>(count);
    const auto cancel = [key, lane = lane_, peers = peers_, number = number_] {
      for (std::size_t i = 0; i < peers.size(); ++i) {
        if (static_cast<int>(i) == number) continue;
        Peers::Get().Cancel(peers[i], lane, key, Cancelled());
      }
    };
    if (cancellation != nullptr) {
      OP_REQUIRES_ASYNC(ctx, cancellation->RegisterCallback(token, cancel),
                        Cancelled(), done);
    }
    const auto one_less = [this, ctx, done = std::move(done), rows, token,
                           cancellation] {
      {
        const std::lock_guard<std::mutex> lock(rows->mutex);
        if (--rows->left > 0) return;
      }
      // It may be what ends the last wait, and must not wait for itself.
      if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
      absl::Status status = rows->status;
      if (status.ok()) status = Finish(rows->rows, ctx);
      ctx->SetStatus(status);
      done();
    };
    for (int i = 0; i < count; ++i) {
      if (i == number_) continue;
      const TensorShape shape = ShapeFrom(i, ctx);
      if (shape.num_elements() == 0) {
        rows->rows[i] = Tensor(ctx->input_dtype(0), shape);
        one_less();
        continue;
      }
      Peers::Get().Receive(
          peers_[i], lane_, key,
          [rows, i, one_less, shape, dtype = ctx->input_dtype(0)](
              const absl::Status& status, const Tensor& row) {
            {
              const std::lock_guard<std::mutex> lock(rows->mutex);
              const int64_t size =
                  shape.num_elements() * tensorflow::DataTypeSize(dtype);
              if (!status.ok()) {
                rows->status = status;
              } else if (row.NumElements() != size) {
                rows->status = absl::InternalError(absl::StrCat(
                    "Expected a row of ", size, " bytes from another device. ",
                    "Received: ", row.NumElements(), "."));
              } else {
                // It is of the same size, so this succeeds.
                rows->rows[i].BitcastFrom(row, dtype, shape).IgnoreError();
              }
            }
            one_less();
          });
    }
    // It may have been cancelled before it waited for anything.
    if (cancellation != nullptr && cancellation->IsCancelled()) cancel();
    one_less();
  }

 protected:
  // What a device is sent. Nothing is sent that has no numbers.
  virtual const Tensor& RowFor(int device, OpKernelContext* ctx) const = 0;

  // The shape of what a device sends.
  virtual TensorShape ShapeFrom(int device, OpKernelContext* ctx) const = 0;

  // Makes the results of what the others have sent.
  virtual absl::Status Finish(const std::vector<Tensor>& rows,
                              OpKernelContext* ctx) const = 0;

  int number() const { return number_; }

 private:
  struct Rows {
    // One more is for the op itself, so that it ends when it has asked for all.
    explicit Rows(int count) : rows(count), left(count) {}

    std::mutex mutex;
    std::vector<Tensor> rows;
    int left;
    absl::Status status;
  };

  const uint64_t exchange_;
  std::vector<int64_t> peers_;
  int number_ = 0;
  Lane lane_ = Lane::kStatistics;
};

class ExchangeRowsOp : public RowsOp {
 public:
  explicit ExchangeRowsOp(OpKernelConstruction* ctx) : RowsOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shapes", &shapes_));
  }

 protected:
  const Tensor& RowFor(int, OpKernelContext* ctx) const override {
    return ctx->input(0);
  }

  TensorShape ShapeFrom(int device, OpKernelContext* ctx) const override {
    return shapes_.empty() ? ctx->input(0).shape() : shapes_[device];
  }

  absl::Status Finish(const std::vector<Tensor>& rows,
                      OpKernelContext* ctx) const override {
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      ctx->set_output(i, i == number() ? ctx->input(0) : rows[i]);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<TensorShape> shapes_;
};

template <typename T>
class SumRowsOp : public RowsOp {
 public:
  using RowsOp::RowsOp;

 protected:
  const Tensor& RowFor(int device, OpKernelContext* ctx) const override {
    return ctx->input(device);
  }

  TensorShape ShapeFrom(int, OpKernelContext* ctx) const override {
    return ctx->input(number()).shape();
  }

  absl::Status Finish(const std::vector<Tensor>& rows,
                      OpKernelContext* ctx) const override {
    const Tensor& own = ctx->input(number());
    Tensor* sum = nullptr;
    const absl::Status status = ctx->allocate_output(0, own.shape(), &sum);
    if (!status.ok()) return status;
    T* const total = sum->flat<T>().data();
    const int64_t size = own.NumElements();
    // In the same order on all devices, whoever was first.
    for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
      const T* const row = (i == number() ? own : rows[i]).flat<T>().data();
      for (int64_t k = 0; k < size; ++k) {
        total[k] = i == 0 ? row[k] : total[k] + row[k];
      }
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>PeersListen").Device(tensorflow::DEVICE_CPU),
    PeersListenOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>PeersConnect").Device(tensorflow::DEVICE_CPU),
    PeersConnectOp);
REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ExchangeRows").Device(tensorflow::DEVICE_CPU),
    ExchangeRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfConvpar>SumRows")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<float>("T"),
                        SumRowsOp<float>);
REGISTER_KERNEL_BUILDER(Name("TfConvpar>SumRows")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<double>("T"),
                        SumRowsOp<double>);

}  // namespace
}  // namespace tf_convpar
