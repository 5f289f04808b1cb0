#pragma once

#include "../core/parallel.h"
#include "../core/table.h"

namespace lavagna {

enum class Gate : int { none, silu, sigmoid };

// y = w ∘ x / rms(x) ∘ act(gate), or w ∘ u / rms(u) of u = x ∘ act(gate), over `size` channels of each head.
//
// Rows of tokens are x_row, gate_row and dy_row numbers apart, their heads contiguous; everything else is contiguous.
template <class T>
struct RmsNorm {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t size;
  bool weight_per_head;  // weight [heads, size] instead of [size]
  Gate act;
  bool gate_first;
  T eps;
  const T* x;
  std::int64_t x_row;
  const T* weight;
  const T* gate;
  std::int64_t gate_row;
  T* y;

  // backward
  const T* dy;
  std::int64_t dy_row;
  T* dx;
  T* d_gate;     // null without a gate
  T* partials;  // [tasks, weight], the tasks' shares of the gradient of the weight
};

// A task is a span of tokens; their number depends on the tokens alone, so that the sum over tasks has the same bits
// for any number of threads.
constexpr std::int64_t rms_norm_tasks = 16;

struct RmsNormKernels {
  Body forward[2];  // float32, float64
  Body backward[2];
};

}  // namespace lavagna

LAVAGNA_KERNELS(RmsNormKernels, rms_norm)
