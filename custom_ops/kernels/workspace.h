// Memory that ops need while they run, kept for the next one. Fresh memory is
// cleared page by page when first touched, which costs several times what
// writing it does.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_WORKSPACE_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "absl/status/status.h"

namespace tf_convpar {

// How many numbers there are of these sizes; -1 for more than any memory has.
int64_t Numbers(std::initializer_list<int64_t> sizes);

// What an op says that got no memory for so many floats.
absl::Status NoMemory(int64_t floats);

class Workspace {
 public:
  // Null data if there is no such memory, or for a number of floats below 0.
  explicit Workspace(int64_t floats);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  float* data() const { return static_cast<float*>(block_); }

  // What so many floats take of memory: whole pages.
  static int64_t BytesFor(int64_t floats);

  struct Bytes {
    int64_t in_use, held, most_held;
  };
  static Bytes Statistics();

 private:
  void* block_;
  size_t size_;
};

// Memory to be kept for long, of which a small block takes no whole pages.
// Null if there is none.
std::shared_ptr<float> Lasting(int64_t floats);

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_WORKSPACE_H_
