#include "../kernels/short_conv.h"

#include "bindings.h"

namespace lavagna {
namespace {

constexpr std::int64_t blocks(std::int64_t channels) { return (channels + short_conv_block - 1) / short_conv_block; }

template <class T>
void forward(int threads, Address bounds, std::int64_t count, std::int64_t tokens, std::int64_t channels,
             std::int64_t width, bool silu, Address x, std::int64_t x_row, Address weight, Address bias, Address state,
             Address y, Address tail) {
  ShortConv<T> a{};
  a.sequences = {at<const std::int64_t>(bounds), count, tokens};
  a.channels = channels;
  a.width = width;
  a.silu = silu;
  a.x = at<const T>(x);
  a.x_row = x_row;
  a.weight = at<const T>(weight);
  a.bias = at<const T>(bias);
  a.state = at<const T>(state);
  a.y = at<T>(y);
  a.tail = at<T>(tail);
  // To wake the other threads takes longer than a few tokens.
  const bool few = count * tokens * channels < 1 << 14;
  parallel(few ? 1 : threads, blocks(channels), short_conv().forward[sizeof(T) == 8], &a);
}

template <class T>
void backward(int threads, Address bounds, std::int64_t count, std::int64_t tokens, std::int64_t channels,
              std::int64_t width, bool silu, Address x, std::int64_t x_row, Address weight, Address bias, Address state,
              Address dy, std::int64_t dy_row, Address d_tail, Address dx, Address d_weight, Address d_bias,
              Address d_state) {
  ShortConv<T> a{};
  a.sequences = {at<const std::int64_t>(bounds), count, tokens};
  a.channels = channels;
  a.width = width;
  a.silu = silu;
  a.x = at<const T>(x);
  a.x_row = x_row;
  a.weight = at<const T>(weight);
  a.bias = at<const T>(bias);
  a.state = at<const T>(state);
  a.dy = at<const T>(dy);
  a.dy_row = dy_row;
  a.d_tail = at<const T>(d_tail);
  a.dx = at<T>(dx);
  a.d_weight = at<T>(d_weight);
  a.d_bias = at<T>(d_bias);
  a.d_state = at<T>(d_state);
  parallel(threads, blocks(channels), short_conv().backward[sizeof(T) == 8], &a);
}

}  // namespace
}  // namespace lavagna

void bind_short_conv(nb::module_& module) {
  using namespace lavagna;
  module.attr("short_conv_widest") = short_conv_widest;
  module.def("short_conv_forward_float32", playable<&forward<float>>, Unlocked());
  module.def("short_conv_forward_float64", playable<&forward<double>>, Unlocked());
  module.def("short_conv_backward_float32", &backward<float>, Unlocked());
  module.def("short_conv_backward_float64", &backward<double>, Unlocked());
}
