#include "custom_ops/kernels/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_convpar {
namespace {

// Less is not worth another thread.
constexpr int64_t kLeastCycles = 20000;
// Threads that begin late, or are disturbed, leave ranges to the others.
constexpr int64_t kRangesPerThread = 4;
// How often it is looked whether the others are ready before the op's thread
// sleeps: for some 10 us on a Xeon.
constexpr int kLooks = 1000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Ranges that threads take, one after the other.
class Ranges {
 public:
  Ranges(int64_t total, int64_t ranges,
         const std::function<void(int64_t, int64_t)>& run)
      : total_(total), ranges_(ranges), run_(&run), left_(ranges) {}

  // Runs what nobody has taken. Touches nothing of the op's where all is taken:
  // the op may be over.
  void Take() {
    for (;;) {
      const int64_t number = next_.fetch_add(1, std::memory_order_relaxed);
      if (number >= ranges_) return;
      (*run_)(number* total_ / ranges_, (number + 1) * total_ / ranges_);
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        absl::MutexLock lock(&mutex_);
        over_ = true;
      }
    }
  }

  // Until all that was taken is done.
  void Wait() {
    for (int look = 0; look < kLooks; ++look) {
      if (left_.load(std::memory_order_acquire) == 0) return;
      Pause();
    }
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&over_));
  }

 private:
  const int64_t total_, ranges_;
  const std::function<void(int64_t, int64_t)>* const run_;
  std::atomic<int64_t> next_{0}, left_;
  absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void InParallel(tensorflow::OpKernelContext* ctx, int64_t total, int64_t cycles,
                const std::function<void(int64_t, int64_t)>& run,
                int64_t least) {
  const auto& pool = *ctx->device()->tensorflow_cpu_worker_threads();
  least = std::max(
      {int64_t{1}, least, kLeastCycles / std::max<int64_t>(1, cycles)});
  int64_t ranges = std::min(total / least, kRangesPerThread * pool.num_threads);
  // As many for each thread, where there are few.
  if (ranges > pool.num_threads) ranges -= ranges % pool.num_threads;
  if (pool.num_threads < 2 || ranges < 2) {
    if (total > 0) run(0, total);
    return;
  }
  const auto shared = std::make_shared<Ranges>(total, ranges, run);
  const int64_t others = std::min<int64_t>(pool.num_threads, ranges) - 1;
  for (int64_t i = 0; i < others; ++i) {
    pool.workers->Schedule([shared] { shared->Take(); });
  }
  shared->Take();
  shared->Wait();
}

}  // namespace tf_convpar
