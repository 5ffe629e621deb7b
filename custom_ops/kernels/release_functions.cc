// Releases the parts of functions that TensorFlow leaves behind.
//
// A function on several tasks is cut into a part for each device. When it goes,
// ProcessFunctionLibraryRuntime::ReleaseMultiDeviceHandle releases one part
// after the other, until it comes to one of another task: "not yet
// implemented". That part, and those that come after it, stay for ever, with
// their graphs and executors.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_convpar {
namespace {

using tensorflow::FunctionBody;
using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

// Between the name of a function and what tells its parts from one another.
constexpr char kPart[] = "_partitioned_";
// Where to give up, should the runtime number in another way one day.
constexpr FunctionLibraryRuntime::Handle kMost = 1 << 22;

// The functions that an instantiated one may be a part of: several, where a
// name has `kPart` in itself; none, where it is no part.
std::vector<std::string> Wholes(FunctionLibraryRuntime* runtime,
                                FunctionLibraryRuntime::Handle handle) {
  const FunctionBody* body = runtime->GetFunctionBody(handle);
  if (body == nullptr || body->record == nullptr) return {};
  const std::string& name = body->record->fdef().signature().name();
  std::vector<std::string> wholes;
  std::size_t end = name.find(kPart);
  for (; end != std::string::npos; end = name.find(kPart, end + 1))
    wholes.push_back(name.substr(0, end));
  return wholes;
}

// Nothing is logged meanwhile: the runtime complains of each number that it has
// released already. One at a time, since the level is the whole process'.
class Silence {
 public:
  Silence() : lock_(Once()), before_(absl::MinLogLevel()) {
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
  }
  ~Silence() { absl::SetMinLogLevel(before_); }

 private:
  static std::mutex& Once() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }

  const std::lock_guard<std::mutex> lock_;
  const absl::LogSeverityAtLeast before_;
};

class ReleaseFunctionsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const auto names = ctx->input(0).flat<tstring>();
    std::unordered_set<std::string> gone;
    for (int64_t i = 0; i < names.size(); ++i) gone.insert(names(i));
    const Tensor& last = ctx->input(1);
    OP_REQUIRES(ctx, last.NumElements() == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "ReleaseFunctions: Expected own to be one name. Received "
                    "shape ",
                    last.shape().DebugString())));
    const std::string own = last.flat<tstring>()(0);
    FunctionLibraryRuntime* runtime = ctx->function_library();
    std::vector<FunctionLibraryRuntime::Handle> parts;
    int released = 0;
    if (runtime != nullptr) {
      const Silence silence;
      bool is_own = false;
      for (FunctionLibraryRuntime::Handle h = 0; h < kMost && !is_own; ++h) {
        for (const std::string& whole : Wholes(runtime, h)) {
          is_own |= whole == own;
          if (gone.count(whole) == 0) continue;
          parts.push_back(h);
          break;
        }
      }
      for (const auto part : parts)
        released += runtime->ReleaseHandle(part).ok();
    }
    Tensor* found;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &found));
    found->scalar<int>()() = released;
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfConvpar>ReleaseFunctions").Device(tensorflow::DEVICE_CPU),
    ReleaseFunctionsOp);

}  // namespace
}  // namespace tf_convpar
