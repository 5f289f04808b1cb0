// Linear attention with a decay: LinearAttention, RetNet, Mamba-2, GLA, RWKV-6. docs/performance explains it.
#include "gated_linear.h"

#include "gated_linear_backward.h"
#include "gated_linear_forward.h"
#include "gated_linear_recurrent.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

enum class Pass { forward, backward };

template <class T, Pass pass, bool channel>
void parts(const GatedLinear<T>& a, std::int64_t begin, std::int64_t end, T* memory) {
  for (std::int64_t task = begin; task < end; ++task) {
    const Part<T> part(a, task);
    if constexpr (pass == Pass::forward)
      forward_part<T, channel>(part, memory);
    else
      backward_part<T, channel>(part, memory);
  }
}

template <class T, Pass pass>
void chunks(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedLinear<T>& a = *static_cast<const GatedLinear<T>*>(arguments);
  T* const memory = a.scratch + thread * a.scratch_size;
  if (a.gate == Gate::channel)
    parts<T, pass, true>(a, begin, end, memory);
  else
    parts<T, pass, false>(a, begin, end, memory);
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
  return Whole(Part<T>(a, 0), nullptr).pieces.size;
}

template <class T>
std::int64_t scratch(const void* arguments, bool backward) {
  const GatedLinear<T>& a = *static_cast<const GatedLinear<T>*>(arguments);
  if (a.gate == Gate::channel)
    return backward ? size_of<T, Backward<T, true>>(a) : size_of<T, Forward<T, true>>(a);
  return backward ? size_of<T, Backward<T, false>>(a) : size_of<T, Forward<T, false>>(a);
}

}  // namespace

const GatedLinearKernels gated_linear = {{chunks<float, Pass::forward>, chunks<double, Pass::forward>},
                                         {chunks<float, Pass::backward>, chunks<double, Pass::backward>},
                                         {recurrent<float>, recurrent<double>},
                                         {scratch<float>, scratch<double>}};

}  // namespace lavagna::LAVAGNA_ISA
