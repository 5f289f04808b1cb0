#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace nb = nanobind;

// One function per file of this folder; module.cpp calls them all. A tensor comes as the address of its data, what
// is absent as 0. Shapes and dtypes were checked in Python.
void bind_limits(nb::module_& module);
void bind_rms_norm(nb::module_& module);
void bind_short_conv(nb::module_& module);

namespace lavagna {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Kernels run without Python's lock.
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

}  // namespace lavagna
