// Linear attention with a decay: LinearAttention, RetNet, Mamba-2, GLA, RWKV-6. docs/performance explains it.
#include "gated_linear.h"

#include "gated_linear_backward.h"
#include "gated_linear_forward.h"
#include "gated_linear_recurrent.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

enum class Pass { forward, backward };

template <class T, class F, Pass pass, bool channel>
void parts(const GatedLinear<T>& a, std::int64_t begin, std::int64_t end, T* memory) {
  for (std::int64_t task = begin; task < end; ++task) {
    const Part<T> part(a, task);
    if constexpr (pass == Pass::forward)
      forward_part<T, F, channel>(part, memory);
    else
      backward_part<T, F, channel>(part, memory);
  }
}

template <class T, class F, Pass pass>
void chunks(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedLinear<T>& a = *static_cast<const GatedLinear<T>*>(arguments);
  T* const memory = a.scratch + thread * a.scratch_size;
  if (a.gate == Gate::channel)
    parts<T, F, pass, true>(a, begin, end, memory);
  else
    parts<T, F, pass, false>(a, begin, end, memory);
}

template <class T>
void recurrent(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedLinear<T>& a = *static_cast<const GatedLinear<T>*>(arguments);
  T* const memory = a.scratch + thread * a.scratch_size;
  for (std::int64_t task = begin; task < end; ++task) {
    if (a.bonus != nullptr)
      recurrent_head<T, true>(a, task / a.value_heads(), task % a.value_heads(), memory);
    else
      recurrent_head<T, false>(a, task / a.value_heads(), task % a.value_heads(), memory);
  }
}

template <class T, class Whole>
std::int64_t size_of(const GatedLinear<T>& a) {
  return Whole(Part<T>(a, 0), nullptr).pieces.used;
}

template <class T, class F>
std::int64_t scratch(const void* arguments, bool backward) {
  const GatedLinear<T>& a = *static_cast<const GatedLinear<T>*>(arguments);
  if (a.gate == Gate::channel)
    return backward ? size_of<T, Backward<T, F, true>>(a) : size_of<T, Forward<T, F, true>>(a);
  return backward ? size_of<T, Backward<T, F, false>>(a) : size_of<T, Forward<T, F, false>>(a);
}

template <class T, class F>
constexpr GatedLinearForms forms() {
  return {chunks<T, F, Pass::forward>, chunks<T, F, Pass::backward>, recurrent<T>, scratch<T, F>};
}

template <class F>
constexpr GatedLinearForms mixed() {
  if constexpr (has_pairs)
    return forms<float, F>();
  else
    return {};
}

}  // namespace

const GatedLinearKernels gated_linear = {forms<float, float>(), forms<double, double>(), mixed<Pair>()};

}  // namespace lavagna::LAVAGNA_ISA
