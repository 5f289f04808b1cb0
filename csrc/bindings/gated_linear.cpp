#include "../kernels/gated_linear.h"

#include "bindings.h"

namespace lavagna {
namespace {

// What all kernels are given: threads, sequences and sizes, options, and each tensor over time by its address and the
// distance between its rows; the bonus.
using Given = std::tuple<int, Address, Int, Int, Int, Int, Int, Int, Int,  //
                         int, bool, double, double,                        //
                         Address, Int, Address, Int, Address, Int, Address, Int, Address>;

template <class T>
GatedLinear<T> arguments(const Given& given) {
  [[maybe_unused]] const auto [threads, bounds, count, each, tokens, heads, ratio, keys, values,  //
                               gate, normalizer, scale, epsilon,                                  //
                               q, q_row, k, k_row, v, v_row, log_decay, log_decay_row, bonus] = given;
  GatedLinear<T> a{};
  a.sequences = {at<const Int>(bounds), count, each};
  a.tokens = tokens;
  a.heads = heads;
  a.ratio = ratio;
  a.keys = keys;
  a.values = values;
  a.gate = static_cast<Gate>(gate);
  a.normalizer = normalizer;
  a.scale = static_cast<T>(scale);
  a.epsilon = static_cast<T>(epsilon);
  a.q = at<const T>(q);
  a.q_row = q_row;
  a.k = at<const T>(k);
  a.k_row = k_row;
  a.v = at<const T>(v);
  a.v_row = v_row;
  a.log_decay = at<const T>(log_decay);
  a.log_decay_row = log_decay_row;
  a.bonus = at<const T>(bonus);
  return a;
}

template <class T>
void run(int threads, Int tasks, Body body, Int scratch_size, GatedLinear<T>& a) {
  const Scratch scratch(team(threads, tasks) * scratch_size * Int{sizeof(T)});
  a.scratch = scratch.as<T>();
  a.scratch_size = scratch_size;
  parallel(threads, tasks, body, &a);
}

template <class T, bool mixed>
const GatedLinearForms& forms() {
  return sizeof(T) == 8 ? gated_linear().float64 : mixed ? gated_linear().mixed : gated_linear().float32;
}

// chunk 0: the recurrent form.
template <class T, bool mixed = false>
void forward(const Given& given, Int chunk, Int keep, Int parts, Int strip, Address S, Address z, Address o,
             Address final_S, Address final_z, Address weight, Address kept) {
  GatedLinear<T> a = arguments<T>(given);
  a.chunk = chunk;
  a.keep = keep;
  a.parts = parts;
  a.strip = strip;
  a.S = at<const T>(S);
  a.z = at<const T>(z);
  a.o = at<T>(o);
  a.final_S = at<T>(final_S);
  a.final_z = at<T>(final_z);
  a.weight = at<T>(weight);
  a.kept = at<T>(kept);
  const GatedLinearForms& forms = lavagna::forms<T, mixed>();
  const int threads = std::get<0>(given);
  const Int count = a.sequences.count;
  if (chunk == 0)
    run(threads, count * a.value_heads(), forms.recurrent, 2 * whole_vectors(a.keys), a);
  else if (count > 0)
    run(threads, count * a.heads * parts, forms.forward, forms.scratch(&a, false), a);
}

template <class T, bool mixed = false>
void backward(const Given& given, Int keep, Int parts, Address o, Address weight, Address kept, Address d_o,
              Int d_o_row, Address d_final_S, Address d_final_z, Address dq, Address dk, Address dv,
              Address d_log_decay, Address d_bonus, Address d_S, Address d_z) {
  GatedLinear<T> a = arguments<T>(given);
  a.chunk = a.keep = keep;
  a.parts = parts;
  a.strip = a.values;
  a.o = at<T>(o);
  a.weight = at<T>(weight);
  a.kept = at<T>(kept);
  a.d_o = at<const T>(d_o);
  a.d_o_row = d_o_row;
  a.d_final_S = at<const T>(d_final_S);
  a.d_final_z = at<const T>(d_final_z);
  a.dq = at<T>(dq);
  a.dk = at<T>(dk);
  a.dv = at<T>(dv);
  a.d_log_decay = at<T>(d_log_decay);
  a.d_bonus = at<T>(d_bonus);
  a.d_S = at<T>(d_S);
  a.d_z = at<T>(d_z);
  // The gradient of a constant decay is one sum over all tokens, in which what is rounded off a slow state adds up.
  const GatedLinearForms& forms =
      a.gate == Gate::constant ? lavagna::forms<T, false>() : lavagna::forms<T, mixed>();
  const Int tasks = a.sequences.count * a.heads * parts;
  if (tasks > 0) run(std::get<0>(given), tasks, forms.backward, forms.scratch(&a, true), a);
}

}  // namespace
}  // namespace lavagna

void bind_gated_linear(nb::module_& module) {
  using namespace lavagna;
  module.def("gated_linear_forward_float32", playable<&forward<float>>, Unlocked());
  module.def("gated_linear_forward_float64", playable<&forward<double>>, Unlocked());
  module.def("gated_linear_forward_float32_of_bfloat16", playable<&forward<float, true>>, Unlocked());
  module.def("gated_linear_backward_float32", &backward<float>, Unlocked());
  module.def("gated_linear_backward_float64", &backward<double>, Unlocked());
  module.def("gated_linear_backward_float32_of_bfloat16", &backward<float, true>, Unlocked());
}
