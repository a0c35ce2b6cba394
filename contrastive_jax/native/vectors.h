// Vectors of floats, tasks on the threads of XLA's pool, and memory for them.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
template <int L>
struct Lanes {
  typedef float Vector __attribute__((vector_size(4 * L), aligned(4), may_alias));
};
template <int L>
using Vector = typename Lanes<L>::Vector;

constexpr int64_t PANEL = 32 << 10;     // bytes of weights that a tile loop goes over: they stay in the first cache
constexpr int64_t SLICE = 64;           // channels of images, and of gradients, of a piece of the kernel's gradient
constexpr int64_t PIECES = 32;          // tasks of a kernel's gradient, at least, if there are as many images

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One copy of a task's code for all threads: of two that are inlined, the compiler may contract products and sums of
// one otherwise, and so round otherwise.
template <typename Task>
__attribute__((noinline)) void perform(const Task& task, int64_t i) {
  task(i);
}

// Runs task(0), ..., task(count - 1) on the threads of the pool and on this one. This thread waits only for tasks that
// others have begun, so no thread waits for one that cannot run.
template <typename Task>
void parallel(ffi::ThreadPool& pool, int64_t count, const Task& task) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable idle;
    int64_t busy = 0;
    bool closed = false;
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) perform(task, i);
    return;
  }
  auto shared = std::make_shared<Shared>();
  auto work = [&task, count](Shared& s) {
    for (int64_t i; (i = s.next.fetch_add(1)) < count;) perform(task, i);
  };
  for (int64_t h = 0; h < helpers; ++h) {
    pool.Schedule([shared, work] {
      {
        std::lock_guard<std::mutex> lock(shared->mutex);
        if (shared->closed) return;  // too late: the task is gone
        ++shared->busy;
      }
      work(*shared);
      std::lock_guard<std::mutex> lock(shared->mutex);
      if (--shared->busy == 0) shared->idle.notify_all();
    });
  }
  work(*shared);
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->closed = true;
  shared->idle.wait(lock, [&] { return shared->busy == 0; });
}

// Memory of this thread that tasks write over; kept between calls.
template <int Which>
float* scratch(int64_t floats) {
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < floats + LANES) memory.resize(floats + LANES);
  return memory.data();
}

template <int L = LANES>
Vector<L> load(const float* from) {
  return *reinterpret_cast<const Vector<L>*>(from);
}
template <int L = LANES>
void store(float* to, Vector<L> value) {
  *reinterpret_cast<Vector<L>*>(to) = value;
}

// Copies and zeros of a few vectors, without the call.
void copy(float* to, const float* from, int64_t n) {
  for (; n >= LANES; n -= LANES, to += LANES, from += LANES) store(to, load(from));
  for (; n > 0; --n) *to++ = *from++;
}
void clear(float* to, int64_t n) {
  for (; n >= LANES; n -= LANES, to += LANES) store(to, Vector<LANES>{});
  for (; n > 0; --n) *to++ = 0.0f;
}

// A convolution's kernel as numbers [tap][in][out], `across` and `along` apart, the last tap first if flipped.
struct Kernel {
  const float* numbers;
  int64_t across, along;
  bool flipped;
};

}  // namespace
