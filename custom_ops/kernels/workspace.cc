#include "custom_ops/kernels/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/util/overflow.h"

// A build that watches over memory sees what is written behind a workspace.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, size)
#define ASAN_UNPOISON_MEMORY_REGION(begin, size)
#endif

namespace tf_convpar {
namespace {

constexpr size_t kPage = size_t{2} << 20;  // a huge one
// No machine has as much, and sums with it do not overflow.
constexpr int64_t kMostFloats = int64_t{1} << 48;

absl::Mutex mutex(absl::kConstInit);
Workspace::Bytes bytes ABSL_GUARDED_BY(mutex) = {0, 0, 0};

// Free blocks by size.
std::multimap<size_t, void*>& Free() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  static auto* free = new std::multimap<size_t, void*>;
  return *free;
}

void* Map(size_t size) {
  void* start = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  // Only whole huge pages; the rest goes back.
  const uintptr_t first = reinterpret_cast<uintptr_t>(start);
  const uintptr_t begin = (first + kPage - 1) / kPage * kPage;
  if (begin > first) munmap(start, begin - first);
  const size_t tail = first + kPage - begin;
  if (tail) munmap(reinterpret_cast<void*>(begin + size), tail);
  void* block = reinterpret_cast<void*>(begin);
  madvise(block, size, MADV_HUGEPAGE);
  return block;
}

}  // namespace

int64_t Numbers(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    product = tensorflow::MultiplyWithoutOverflow(product, size);
  }
  return product <= kMostFloats ? product : -1;
}

absl::Status NoMemory(int64_t floats) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "Expected memory for the workspace of a convolution, ",
      floats < 0 ? std::string("of more than 2^48 numbers")
                 : absl::StrCat(floats * sizeof(float) >> 20, " MiB"),
      ". Received: none. A smaller batch, or algorithm=\"direct\", needs "
      "less."));
}

int64_t Workspace::BytesFor(int64_t floats) {
  return (floats * sizeof(float) + kPage - 1) / kPage * kPage;
}

Workspace::Workspace(int64_t floats) : block_(nullptr), size_(0) {
  if (floats < 0 || floats > kMostFloats) return;
  size_ = BytesFor(floats);
  absl::MutexLock lock(&mutex);
  auto& free = Free();
  const auto fit = free.lower_bound(size_);
  if (fit != free.end()) {
    size_ = fit->first;
    block_ = fit->second;
    free.erase(fit);
  } else {
    // What is free is too small for this op and so, soon, for none: the sizes
    // of a model's ops come again each step.
    if (!free.empty()) {
      const auto largest = std::prev(free.end());
      munmap(largest->second, largest->first);
      bytes.held -= largest->first;
      free.erase(largest);
    }
    block_ = Map(size_);
    if (block_ == nullptr) return;
    bytes.held += size_;
    bytes.most_held = std::max(bytes.most_held, bytes.held);
  }
  bytes.in_use += size_;
  ASAN_POISON_MEMORY_REGION(data() + floats, size_ - floats * sizeof(float));
}

Workspace::~Workspace() {
  if (block_ == nullptr) return;
  ASAN_UNPOISON_MEMORY_REGION(block_, size_);
  absl::MutexLock lock(&mutex);
  bytes.in_use -= size_;
  Free().emplace(size_, block_);
}

Workspace::Bytes Workspace::Statistics() {
  absl::MutexLock lock(&mutex);
  return bytes;
}

std::shared_ptr<float> Lasting(int64_t floats) {
  if (floats < 0 || floats > kMostFloats) return nullptr;
  constexpr size_t kLine = 64;
  const size_t size = (floats * sizeof(float) + kLine - 1) / kLine * kLine;
  if (size >= kPage / 2) {
    // A block of its own: a free one, which may be far larger, would be gone.
    const size_t pages = Workspace::BytesFor(floats);
    void* const block = Map(pages);
    if (block == nullptr) return nullptr;
    const auto count = [](int64_t more) {
      absl::MutexLock lock(&mutex);
      bytes.held += more;
      bytes.in_use += more;
      bytes.most_held = std::max(bytes.most_held, bytes.held);
    };
    count(pages);
    return {static_cast<float*>(block), [=](float* p) {
              munmap(p, pages);
              count(-static_cast<int64_t>(pages));
            }};
  }
  return {static_cast<float*>(std::aligned_alloc(kLine, std::max(size, kLine))),
          [](float* p) { std::free(p); }};
}

}  // namespace tf_convpar
