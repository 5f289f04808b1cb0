#pragma once

#include <cstdint>

namespace lavagna {

// Hand over torch's own OpenMP runtime: addresses of its GOMP_parallel, omp_get_thread_num and omp_get_num_threads.
// Without them every kernel runs on the calling thread. A second runtime in the process would fight torch's for the
// cores.
void set_openmp(std::uintptr_t parallel, std::uintptr_t thread_number, std::uintptr_t thread_count);

// From now on every kernel runs on the calling thread: in the child of a fork the runtime believes in threads that are
// not there.
void use_one_thread();

// A kernel's work on the tasks begin ≤ task < end, by one thread; `thread` < threads.
using Body = void (*)(const void* arguments, std::int64_t begin, std::int64_t end, int thread);

// Share `tasks` among `threads` in contiguous ranges whose borders depend on the two numbers alone. With one thread,
// one task, or after use_one_thread() the caller does them all.
void parallel(int threads, std::int64_t tasks, Body body, const void* arguments);

// How many threads `parallel` will use, for scratch memory.
int team(int threads, std::int64_t tasks);

// Memory for the duration of one call, aligned to cache lines, not initialised.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_;
};

}  // namespace lavagna
