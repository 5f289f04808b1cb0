#pragma once

#include "../core/parallel.h"
#include "../core/table.h"

namespace lavagna {

// y = x Wᵀ + b for a few rows of x: W is read once, from memory as a rule, and nothing else takes time. All of them are
// float32, or all bfloat16.
struct SkinnyLinear {
  std::int64_t rows;     // 1 to skinny_linear_rows
  std::int64_t inputs;   // columns of W, at least 1
  std::int64_t outputs;  // rows of W
  const void* x;         // [rows, inputs]
  std::int64_t x_row;    // numbers from one row of x to the next
  const void* weight;    // [outputs, inputs], contiguous
  const void* bias;      // [outputs], or null
  void* y;               // [rows, outputs]
  float* spread;         // skinny_linear_spread(inputs) · rows numbers
};

constexpr std::int64_t skinny_linear_rows = 4;

// Numbers that a row of x takes, spread for the vectors of any instruction set.
constexpr std::int64_t skinny_linear_spread(std::int64_t inputs) { return (inputs + 31) / 32 * 32; }

// A task is a row of W. Spread x first, on one thread.
struct SkinnyLinearKernels {
  void (*spread[2])(const SkinnyLinear&);  // float32, bfloat16
  Body run[2];
};

}  // namespace lavagna

LAVAGNA_KERNELS(SkinnyLinearKernels, skinny_linear)
