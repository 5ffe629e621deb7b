// Writes that go past the caches.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_STREAM_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_STREAM_H_

#include <cstdint>

#include "custom_ops/kernels/convert.h"

namespace tf_convpar {

// Copying more than the caches hold is bound by memory, and a plain store
// reads each line from memory before it overwrites it. Streaming stores do
// not. Below this size the result may still be in a cache for its reader,
// which is worth more.
inline constexpr int64_t kStreamBytes = int64_t{16} << 20;

// Gathers runs of numbers into whole cache lines, and writes those one after
// the other by streaming stores where the processor has them.
class StreamWriter {
 public:
  // Begins at `dst`, aligned for the numbers to come.
  explicit StreamWriter(char* dst);

  // Converts `n` numbers from `from` bytes each to `to` bytes each.
  void Append(ConvertFn convert, const char* src, int64_t from, int64_t to,
              int64_t n);

  // Writes what is left, and orders all writes before whatever tells other
  // threads that this one is done. To be called once, at the end.
  void Finish();

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kBlock = 32 * kLine;  // stays in the first cache

  void WriteBlock();

  alignas(kLine) char block_[kBlock];
  char* line_;     // where block_[0] goes: the start of a line
  int64_t begin_;  // the part of block_ in use: only the first block of all
  int64_t end_;    // does not begin at 0
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_STREAM_H_
