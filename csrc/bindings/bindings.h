#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <tuple>

#include "program.h"

namespace nb = nanobind;

// One function per file of this folder; module.cpp calls them all. A tensor comes as the address of its data, what
// is absent as 0. Shapes and dtypes were checked in Python.
void bind_elementwise(nb::module_& module);
void bind_limits(nb::module_& module);
void bind_rms_norm(nb::module_& module);
void bind_gated_delta(nb::module_& module);
void bind_gated_linear(nb::module_& module);
void bind_selective_scan(nb::module_& module);
void bind_short_conv(nb::module_& module);
void bind_program(nb::module_& module);
void bind_skinny_linear(nb::module_& module);

namespace lavagna {

using Address = std::uintptr_t;
using Int = std::int64_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Kernels run without Python's lock. While the interpreter ends, Python unwinds the stack of a thread that asks for the
// lock, and an unwinding that leaves a destructor ends the process: such a thread waits for the end of the process.
class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

using Unlocked = nb::call_guard<WithoutLock>;

// The same function, written down where its thread records a program.
template <auto kernel>
struct Playable;
template <class... Arguments, void (*kernel)(Arguments...)>
struct Playable<kernel> {
  static void call(Arguments... arguments) {
    kernel(arguments...);
    if (Program* program = Program::recorded()) program->add([=] { kernel(arguments...); });
  }
};
template <auto kernel>
constexpr auto playable = &Playable<kernel>::call;

}  // namespace lavagna
