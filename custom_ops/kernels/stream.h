// Writes that go past the caches.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_STREAM_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_STREAM_H_

#include <cstdint>

#include "custom_ops/kernels/convert.h"

namespace tf_convpar {

// Copying more than the caches hold is bound by memory, and a plain store
// reads each line from memory before it overwrites it. Streaming stores do
// not, which is worth a quarter to a third of the time; they are a loss where
// the result could have stayed in a cache or where runs are short.
inline constexpr int64_t kStreamTotalBytes = int64_t{16} << 20;
inline constexpr int64_t kStreamRunBytes = 1024;

// As `convert(src, dst, n)`, by streaming stores where the processor has them.
// `from` and `to` are the bytes per number on either side; `copy` says that
// `convert` only copies.
void StreamConvert(ConvertFn convert, const char* src, int64_t from, char* dst,
                   int64_t to, int64_t n, bool copy);

// To be called by each thread after its last StreamConvert: orders its writes
// before whatever tells the others that they are done.
void StreamFence();

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_STREAM_H_
