#include "parallel.h"

#include "instruction_sets.h"

#include <cstdlib>
#include <new>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lavagna {
namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using Number = int (*)();

GompParallel gomp_parallel = nullptr;
Number thread_number = nullptr;
Number thread_count = nullptr;
bool alone = false;

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
  [[maybe_unused]] const FlushToZero guard;
  // The runtime may grant fewer threads than it was asked for (OMP_DYNAMIC, OMP_THREAD_LIMIT): each then takes the
  // ranges of several.
  const int granted = thread_count();
  for (int thread = thread_number(); thread < team.threads; thread += granted) {
    const std::int64_t begin = team.tasks * thread / team.threads;
    const std::int64_t end = team.tasks * (thread + 1) / team.threads;
    if (begin < end) team.body(team.arguments, begin, end, thread);
  }
}

}  // namespace

void set_openmp(std::uintptr_t parallel, std::uintptr_t number, std::uintptr_t count) {
  gomp_parallel = reinterpret_cast<GompParallel>(parallel);
  thread_number = reinterpret_cast<Number>(number);
  thread_count = reinterpret_cast<Number>(count);
}

void use_one_thread() { alone = true; }

int team(int threads, std::int64_t tasks) {
  return threads < 2 || tasks < 2 || gomp_parallel == nullptr || alone ? 1 : threads;
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
