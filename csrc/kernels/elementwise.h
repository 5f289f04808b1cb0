#pragma once

#include <cstdint>

#include "../core/table.h"

namespace lavagna {

// What stands between the kernels of a step, to the same bits as in torch: y[i] from a[i], or from a[i] and b[i].
// bfloat16 is computed in float32 and rounded once.
struct ElementwiseKernels {
  using Unary = void (*)(std::int64_t count, const void* a, void* y);
  using Binary = void (*)(std::int64_t count, const void* a, const void* b, void* y);
  Unary widen;   // bfloat16 to float32
  Unary narrow;  // float32 to bfloat16
  Binary add[2];  // float32, bfloat16
  Binary multiply[2];
};

}  // namespace lavagna

LAVAGNA_KERNELS(ElementwiseKernels, elementwise)
