#include "../kernels/rms_norm.h"

#include "bindings.h"

namespace lavagna {
namespace {

template <class T>
RmsNorm<T> arguments(std::int64_t tokens, std::int64_t heads, std::int64_t size, bool weight_per_head, int act,
                     bool gate_first, double eps, Address x, std::int64_t x_row, Address weight, Address gate,
                     std::int64_t gate_row) {
  RmsNorm<T> a{};
  a.tokens = tokens;
  a.heads = heads;
  a.size = size;
  a.weight_per_head = weight_per_head;
  a.act = static_cast<Gate>(act);
  a.gate_first = gate_first;
  a.eps = static_cast<T>(eps);
  a.x = at<const T>(x);
  a.x_row = x_row;
  a.weight = at<const T>(weight);
  a.gate = at<const T>(gate);
  a.gate_row = gate_row;
  return a;
}

template <class T>
void forward(int threads, std::int64_t tokens, std::int64_t heads, std::int64_t size, bool weight_per_head, int act,
             bool gate_first, double eps, Address x, std::int64_t x_row, Address weight, Address gate,
             std::int64_t gate_row, Address y) {
  RmsNorm<T> a = arguments<T>(tokens, heads, size, weight_per_head, act, gate_first, eps, x, x_row, weight, gate,
                              gate_row);
  a.y = at<T>(y);
  parallel(tokens < rms_norm_tasks ? 1 : threads, rms_norm_tasks, rms_norm().forward[sizeof(T) == 8], &a);
}

template <class T>
void backward(int threads, std::int64_t tokens, std::int64_t heads, std::int64_t size, bool weight_per_head, int act,
              bool gate_first, double eps, Address x, std::int64_t x_row, Address weight, Address gate,
              std::int64_t gate_row, Address dy, std::int64_t dy_row, Address dx, Address d_weight, Address d_gate) {
  RmsNorm<T> a = arguments<T>(tokens, heads, size, weight_per_head, act, gate_first, eps, x, x_row, weight, gate,
                              gate_row);
  a.dy = at<const T>(dy);
  a.dy_row = dy_row;
  a.dx = at<T>(dx);
  a.d_gate = at<T>(d_gate);
  const std::int64_t numbers = weight_per_head ? heads * size : size;
  const Scratch partials(rms_norm_tasks * numbers * static_cast<std::int64_t>(sizeof(T)));
  a.partials = partials.as<T>();
  parallel(tokens < rms_norm_tasks ? 1 : threads, rms_norm_tasks, rms_norm().backward[sizeof(T) == 8], &a);
  T* total = at<T>(d_weight);
  for (std::int64_t i = 0; i < numbers; ++i) {
    T sum = 0;
    for (std::int64_t task = 0; task < rms_norm_tasks; ++task) sum += a.partials[task * numbers + i];
    total[i] = sum;
  }
}

}  // namespace
}  // namespace lavagna

void bind_rms_norm(nb::module_& module) {
  using namespace lavagna;
  module.def("rms_norm_forward_float32", playable<&forward<float>>, Unlocked());
  module.def("rms_norm_forward_float64", playable<&forward<double>>, Unlocked());
  module.def("rms_norm_backward_float32", &backward<float>, Unlocked());
  module.def("rms_norm_backward_float64", &backward<double>, Unlocked());
}
