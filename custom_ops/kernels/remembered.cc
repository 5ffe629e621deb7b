#include "custom_ops/kernels/remembered.h"

#include <cstring>
#include <utility>

#include "tensorflow/core/framework/tensor.h"

namespace tf_convpar {

using tensorflow::Tensor;

std::shared_ptr<const float> Remembered::Find(const Tensor& of) {
  absl::MutexLock lock(&mutex_);
  if (made_ == nullptr || of.shape() != of_.shape()) return nullptr;
  const auto mine = of_.tensor_data(), other = of.tensor_data();
  if (mine.data() == other.data()) return made_;
  if (std::memcmp(mine.data(), other.data(), mine.size()) != 0) return nullptr;
  of_ = of;
  return made_;
}

void Remembered::Keep(const Tensor& of, std::shared_ptr<const float> made) {
  absl::MutexLock lock(&mutex_);
  of_ = of;
  made_ = std::move(made);
}

}  // namespace tf_convpar
