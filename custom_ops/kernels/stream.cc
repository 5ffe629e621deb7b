#include "custom_ops/kernels/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tf_convpar {

#if defined(__SSE2__)

namespace {

constexpr int64_t kLine = 64;

// `dst` must be at the start of a cache line.
void StreamLines(const char* src, char* dst, int64_t lines) {
  const auto* in = reinterpret_cast<const __m128i*>(src);
  auto* out = reinterpret_cast<__m128i*>(dst);
  for (; lines > 0; --lines, in += 4, out += 4) {
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
}

}  // namespace

void StreamConvert(ConvertFn convert, const char* src, int64_t from, char* dst,
                   int64_t to, int64_t n, bool copy) {
  // Numbers up to the next line, so that whole lines follow.
  const auto address = reinterpret_cast<uintptr_t>(dst);
  const int64_t head =
      std::min<int64_t>(n, ((kLine - address % kLine) % kLine) / to);
  convert(src, dst, head);
  src += head * from;
  dst += head * to;
  n -= head;
  const int64_t per_line = kLine / to;
  constexpr int64_t kBlockLines = 32;  // 2 KiB: stays in the first cache
  alignas(kLine) char block[kBlockLines * kLine];
  while (n >= per_line) {
    const int64_t lines = std::min(n / per_line, kBlockLines);
    const int64_t m = lines * per_line;
    if (copy) {
      StreamLines(src, dst, lines);
    } else {
      convert(src, block, m);
      StreamLines(block, dst, lines);
    }
    src += m * from;
    dst += m * to;
    n -= m;
  }
  convert(src, dst, n);
}

void StreamFence() { _mm_sfence(); }

#else

void StreamConvert(ConvertFn convert, const char* src, int64_t from, char* dst,
                   int64_t to, int64_t n, bool copy) {
  convert(src, dst, n);
}

void StreamFence() {}

#endif  // __SSE2__

}  // namespace tf_convpar
