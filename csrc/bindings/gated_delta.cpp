#include "../kernels/gated_delta.h"

#include "bindings.h"

namespace lavagna {
namespace {

// What all kernels are given: threads, sequences and sizes, options, and each tensor over time by its address and the
// distance between its rows.
using Given = std::tuple<int, Address, Int, Int, Int, Int, Int, Int,  //
                         int, bool, double,                           //
                         Address, Int, Address, Int, Address, Int, Address, Int, Address, Int>;

template <class T>
GatedDelta<T> arguments(const Given& given) {
  [[maybe_unused]] const auto [threads, bounds, count, tokens, key_heads, heads, keys, values,  //
              fading, unit, scale,                                             //
              q, q_row, k, k_row, v, v_row, beta, beta_row, log_decay, log_decay_row] = given;
  GatedDelta<T> a{};
  a.sequences = {at<const Int>(bounds), count, tokens};
  a.key_heads = key_heads;
  a.heads = heads;
  a.keys = keys;
  a.values = values;
  a.fading = static_cast<Fading>(fading);
  a.unit = unit;
  a.scale = static_cast<T>(scale);
  a.q = at<const T>(q);
  a.q_row = q_row;
  a.k = at<const T>(k);
  a.k_row = k_row;
  a.v = at<const T>(v);
  a.v_row = v_row;
  a.beta = at<const T>(beta);
  a.beta_row = beta_row;
  a.log_decay = at<const T>(log_decay);
  a.log_decay_row = log_decay_row;
  return a;
}

// Products of bfloat16 numbers where they are allowed and pay: chunks of fewer keys are shorter, and rounding a memory
// of few keys again and again adds up.
template <class T, bool mixed>
const GatedDeltaForms<T>& forms(const GatedDelta<T>& a) {
  if constexpr (sizeof(T) == 8)
    return gated_delta().float64;
  else
    return mixed && a.keys >= gated_delta_chunk ? gated_delta().mixed : gated_delta().float32;
}

template <class T>
void run(int threads, Int tasks, const GatedDeltaKernel<T>& kernel, GatedDelta<T>& a) {
  a.scratch_size = kernel.scratch(a);
  const Scratch scratch(a.scratch_size * team(threads, tasks) * Int{sizeof(T)});
  a.scratch = scratch.as<T>();
  parallel(threads, tasks, kernel.run, &a);
}

// Into how many blocks of columns the memory of a head is cut: as few as let the threads share the work evenly.
Int column_blocks(int threads, Int heads, Int values) {
  Int blocks = 1;
  while (blocks < threads && heads * blocks % threads != 0 && blocks * 32 < values) ++blocks;
  return heads >= 4 * threads ? 1 : blocks;
}

// chunk = 0: token by token.
template <class T, bool mixed = false>
void forward(const Given& given, Int chunk, Address state, Address o, Address final_state, Address kept) {
  GatedDelta<T> a = arguments<T>(given);
  a.chunk = chunk;
  a.state = at<const T>(state);
  a.o = at<T>(o);
  a.final_state = at<T>(final_state);
  a.kept = at<T>(kept);
  const int threads = std::get<0>(given);
  const Int heads = a.sequences.count * a.heads;
  if (chunk == 0) return run(threads, heads, forms<T, mixed>(a).recurrent, a);
  a.blocks = column_blocks(threads, heads, a.values);
  run(threads, heads * a.blocks, forms<T, mixed>(a).chunk, a);
}

template <class T, bool mixed = false>
void backward(const Given& given, Int chunk, Address kept, Address d_o, Int d_o_row, Address d_final_state, Address dq,
              Address dk, Address dv, Address d_beta, Address d_log_decay, Address d_state) {
  GatedDelta<T> a = arguments<T>(given);
  a.chunk = chunk;
  a.kept = at<T>(kept);
  a.d_o = at<const T>(d_o);
  a.d_o_row = d_o_row;
  a.d_final_state = at<const T>(d_final_state);
  a.dq = at<T>(dq);
  a.dk = at<T>(dk);
  a.dv = at<T>(dv);
  a.d_beta = at<T>(d_beta);
  a.d_log_decay = at<T>(d_log_decay);
  a.d_state = at<T>(d_state);
  run(std::get<0>(given), a.sequences.count * a.key_heads, forms<T, mixed>(a).backward, a);
}

}  // namespace
}  // namespace lavagna

void bind_gated_delta(nb::module_& module) {
  using namespace lavagna;
  module.attr("gated_delta_chunk") = gated_delta_chunk;
  module.attr("gated_delta_segment") = gated_delta_segment;
  module.def("gated_delta_forward_float32", playable<&forward<float>>, Unlocked());
  module.def("gated_delta_forward_float64", playable<&forward<double>>, Unlocked());
  module.def("gated_delta_forward_float32_of_bfloat16", playable<&forward<float, true>>, Unlocked());
  module.def("gated_delta_backward_float32", &backward<float>, Unlocked());
  module.def("gated_delta_backward_float64", &backward<double>, Unlocked());
  module.def("gated_delta_backward_float32_of_bfloat16", &backward<float, true>, Unlocked());
}
