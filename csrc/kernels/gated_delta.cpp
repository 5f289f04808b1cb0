// The gated delta rule in chunks, forward and backward, and token by token. docs/performance/gated_delta.md explains it.
#include "gated_delta.h"

#include "gated_delta_backward.h"
#include "gated_delta_forward.h"
#include "gated_delta_recurrent.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T>
constexpr GatedDeltaForms<T> forms() {
  return {{forward<T>, forward_scratch<T>},
          {recurrent<T>, recurrent_scratch<T>},
          {backward<T>, backward_scratch<T>}};
}

}  // namespace

const GatedDeltaKernels gated_delta = {forms<float>(), forms<double>()};

}  // namespace lavagna::LAVAGNA_ISA
