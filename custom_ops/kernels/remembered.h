// What an op made of tensors, kept for the next call with the same ones.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_REMEMBERED_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_REMEMBERED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_convpar {

class Remembered {
 public:
  // What was made of these tensors; null if one of the last ones was another.
  //
  // Tensors are held, not copied. Nobody then writes into its memory, as
  // TensorFlow updates a variable in place only where nobody else holds its
  // value. So the same memory is the same tensor. What is in other memory is
  // compared: it may be a copy.
  std::shared_ptr<const float> Find(const std::vector<tensorflow::Tensor>& of);

  void Keep(const std::vector<tensorflow::Tensor>& of,
            std::shared_ptr<const float> made);

 private:
  absl::Mutex mutex_;
  std::vector<tensorflow::Tensor> of_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const float> made_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_REMEMBERED_H_
