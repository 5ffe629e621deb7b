// Programs as attributes of an op carry them.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_BILINEAR_PROGRAM_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_BILINEAR_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/bilinear/pass.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_convpar {

// A chain of sparse matrices that owns its numbers.
class OwnedProgram {
 public:
  // Reads `<prefix>structure`: for each stage its rows, columns, outer and
  // inner size, rows + 1 beginnings of rows and an index for each value; and
  // `<prefix>values`.
  absl::Status Read(tensorflow::OpKernelConstruction* ctx,
                    const std::string& prefix);

  const bilinear::Program& program() const { return program_; }

 private:
  std::vector<int> numbers_;
  std::vector<float> values_;
  std::vector<bilinear::Stage> stages_;
  bilinear::Program program_;
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_BILINEAR_PROGRAM_H_
