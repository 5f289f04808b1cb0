#include "../kernels/skinny_linear.h"

#include "bindings.h"

namespace lavagna {
namespace {

template <int format>
void run(int threads, std::int64_t rows, std::int64_t inputs, std::int64_t outputs, Address x, std::int64_t x_row,
         Address weight, Address bias, Address y) {
  const Scratch spread(skinny_linear_spread(inputs) * rows * static_cast<std::int64_t>(sizeof(float)));
  SkinnyLinear a{};
  a.rows = rows;
  a.inputs = inputs;
  a.outputs = outputs;
  a.x = at<const void>(x);
  a.x_row = x_row;
  a.weight = at<const void>(weight);
  a.bias = at<const void>(bias);
  a.y = at<void>(y);
  a.spread = spread.as<float>();
  skinny_linear().spread[format](a);
  // To wake the other threads takes longer than to read a small matrix.
  const bool small = inputs * outputs < 1 << 16;
  parallel(small ? 1 : threads, outputs, skinny_linear().run[format], &a);
}

}  // namespace
}  // namespace lavagna

void bind_skinny_linear(nb::module_& module) {
  using namespace lavagna;
  module.attr("skinny_linear_rows") = skinny_linear_rows;
  module.def("skinny_linear_float32", playable<&run<0>>, Unlocked());
  module.def("skinny_linear_bfloat16", playable<&run<1>>, Unlocked());
}
