#include "parallel.h"

#include "instruction_sets.h"

#include <cstdlib>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lavagna {
namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using ThreadNumber = int (*)();

GompParallel gomp_parallel = nullptr;
ThreadNumber thread_number = nullptr;
bool forked = false;

// Numbers too small to be normal become 0 inside kernels of the wider sets: a state that fades would else end in them,
// and some processors take a hundred cycles for each. The caller's setting comes back.
//
// Not on the baseline: without fused multiply-adds a product is rounded by itself, and one that is flushed takes digits
// from a sum that is not that small.
class FlushToZero {
#if defined(__SSE2__)
 public:
  FlushToZero() : saved_(_mm_getcsr()) {
    if (instruction_set() > 0) _mm_setcsr(saved_ | 0x8040u);
  }
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

struct Team {
  Body body;
  const void* arguments;
  std::int64_t tasks;
  int threads;
};

void work(void* pointer) {
  const Team& team = *static_cast<const Team*>(pointer);
  const int thread = thread_number();
  const std::int64_t begin = team.tasks * thread / team.threads;
  const std::int64_t end = team.tasks * (thread + 1) / team.threads;
  if (begin == end) return;
  [[maybe_unused]] const FlushToZero guard;
  team.body(team.arguments, begin, end, thread);
}

}  // namespace

void set_openmp(std::uintptr_t parallel, std::uintptr_t number) {
  gomp_parallel = reinterpret_cast<GompParallel>(parallel);
  thread_number = reinterpret_cast<ThreadNumber>(number);
#if defined(__unix__) || defined(__APPLE__)
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  (void)registered;
#endif
}

int team(int threads, std::int64_t tasks) {
  return threads < 2 || tasks < 2 || gomp_parallel == nullptr || forked ? 1 : threads;
}

void parallel(int threads, std::int64_t tasks, Body body, const void* arguments) {
  if (tasks == 0) return;
  if (team(threads, tasks) == 1) {
    [[maybe_unused]] const FlushToZero guard;
    body(arguments, 0, tasks, 0);
    return;
  }
  // Always the whole team: to change its size costs more than threads that have nothing to do.
  Team whole{body, arguments, tasks, threads};
  gomp_parallel(work, &whole, static_cast<unsigned>(threads), 0);
}

Scratch::Scratch(std::int64_t bytes)
    : memory_(bytes == 0 ? nullptr : std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64))) {
  if (bytes != 0 && memory_ == nullptr) throw std::bad_alloc();
}

Scratch::~Scratch() { std::free(memory_); }

}  // namespace lavagna
