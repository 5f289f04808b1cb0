#include "../kernels/limits.h"

#include "bindings.h"

namespace lavagna {
namespace {

// Each thread has one task; `data` holds at least 16 numbers.
std::int64_t multiply_add(int threads, Address data, std::int64_t repeats, Address sums) {
  const Limits a{at<float>(data), 0, repeats, at<float>(sums)};
  parallel(threads, threads, limits().multiply_add, &a);
  return threads * repeats * limits().multiply_adds;
}

std::int64_t exponentials(int threads, Address data, std::int64_t count, std::int64_t repeats, Address sums) {
  const Limits a{at<float>(data), count, repeats, at<float>(sums)};
  parallel(threads, threads, limits().exponentials, &a);
  return threads * repeats * count;
}

void read_memory(int threads, Address data, std::int64_t count, Address sums) {
  const Limits a{at<float>(data), count, 1, at<float>(sums)};
  parallel(threads, (count + limits_piece - 1) / limits_piece, limits().read, &a);
}

void update_memory(int threads, Address data, std::int64_t count) {
  const Limits a{at<float>(data), count, 1, nullptr};
  parallel(threads, (count + limits_piece - 1) / limits_piece, limits().update, &a);
}

}  // namespace
}  // namespace lavagna

void bind_limits(nb::module_& module) {
  using namespace lavagna;
  module.attr("limits_piece") = limits_piece;
  module.def("limits_multiply_add", &multiply_add, Unlocked());
  module.def("limits_exponentials", &exponentials, Unlocked());
  module.def("limits_read", &read_memory, Unlocked());
  module.def("limits_update", &update_memory, Unlocked());
}
