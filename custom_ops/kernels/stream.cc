#include "custom_ops/kernels/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tf_convpar {
namespace {

// Both are whole cache lines.
void StreamLines(const char* src, char* dst, int64_t bytes) {
#if defined(__SSE2__)
  const auto* in = reinterpret_cast<const __m128i*>(src);
  auto* out = reinterpret_cast<__m128i*>(dst);
  for (; bytes > 0; bytes -= 64, in += 4, out += 4) {
    const __m128i a = _mm_load_si128(in), b = _mm_load_si128(in + 1);
    const __m128i c = _mm_load_si128(in + 2), d = _mm_load_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace

StreamWriter::StreamWriter(char* dst)
    : line_(dst - reinterpret_cast<uintptr_t>(dst) % kLine),
      begin_(dst - line_),
      end_(begin_) {}

void StreamWriter::Append(ConvertFn convert, const char* src, int64_t from,
                          int64_t to, int64_t n) {
  while (n > 0) {
    const int64_t m = std::min(n, (kBlock - end_) / to);
    convert(src, block_ + end_, m);
    src += m * from;
    end_ += m * to;
    n -= m;
    if (end_ == kBlock) WriteBlock();
  }
}

void StreamWriter::WriteBlock() {
  if (begin_ == 0 && end_ == kBlock) {
    StreamLines(block_, line_, kBlock);
  } else {
    std::memcpy(line_ + begin_, block_ + begin_, end_ - begin_);
  }
  line_ += kBlock;
  begin_ = end_ = 0;
}

void StreamWriter::Finish() {
  WriteBlock();
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tf_convpar
