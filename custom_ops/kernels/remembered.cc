#include "custom_ops/kernels/remembered.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace tf_convpar {

using tensorflow::Tensor;

namespace {

bool Same(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return false;
  const auto mine = a.tensor_data(), other = b.tensor_data();
  return mine.data() == other.data() ||
         std::memcmp(mine.data(), other.data(), mine.size()) == 0;
}

}  // namespace

std::shared_ptr<const float> Remembered::Find(const std::vector<Tensor>& of) {
  absl::MutexLock lock(&mutex_);
  if (made_ == nullptr ||
      !std::equal(of.begin(), of.end(), of_.begin(), of_.end(), Same)) {
    return nullptr;
  }
  of_ = of;
  return made_;
}

void Remembered::Keep(const std::vector<Tensor>& of,
                      std::shared_ptr<const float> made) {
  absl::MutexLock lock(&mutex_);
  of_ = of;
  made_ = std::move(made);
}

}  // namespace tf_convpar
