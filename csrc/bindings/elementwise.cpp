#include "../kernels/elementwise.h"

#include <cstring>

#include "bindings.h"

namespace lavagna {
namespace {

void copy(std::int64_t bytes, Address a, Address y) {
  std::memmove(at<void>(y), at<const void>(a), static_cast<std::size_t>(bytes));
}

void widen(std::int64_t count, Address a, Address y) { elementwise().widen(count, at<const void>(a), at<void>(y)); }

void narrow(std::int64_t count, Address a, Address y) { elementwise().narrow(count, at<const void>(a), at<void>(y)); }

template <int format>
void add(std::int64_t count, Address a, Address b, Address y) {
  elementwise().add[format](count, at<const void>(a), at<const void>(b), at<void>(y));
}

template <int format>
void multiply(std::int64_t count, Address a, Address b, Address y) {
  elementwise().multiply[format](count, at<const void>(a), at<const void>(b), at<void>(y));
}

}  // namespace
}  // namespace lavagna

// Not without Python's lock: they take no longer than letting go of it.
void bind_elementwise(nb::module_& module) {
  using namespace lavagna;
  module.def("copy", playable<&copy>);
  module.def("widen", playable<&widen>);
  module.def("narrow", playable<&narrow>);
  module.def("add_float32", playable<&add<0>>);
  module.def("add_bfloat16", playable<&add<1>>);
  module.def("multiply_float32", playable<&multiply<0>>);
  module.def("multiply_bfloat16", playable<&multiply<1>>);
}
