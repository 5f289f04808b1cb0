// The gated delta rule in chunks, forward and backward, and token by token; docs/performance/gated_delta.md.
#include "gated_delta.h"

#include "gated_delta_backward.h"
#include "gated_delta_forward.h"
#include "gated_delta_recurrent.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T, class F>
constexpr GatedDeltaForms<T> forms() {
  return {{forward<T, F>, forward_scratch<T, F>},
          {recurrent<T>, recurrent_scratch<T>},
          {backward<T, F>, backward_scratch<T, F>}};
}

template <class F>
constexpr GatedDeltaForms<float> mixed() {
  if constexpr (has_pairs)
    return forms<float, F>();
  else
    return {};
}

}  // namespace

const GatedDeltaKernels gated_delta = {forms<float, float>(), forms<double, double>(), mixed<Pair>()};

}  // namespace lavagna::LAVAGNA_ISA
