#pragma once

#include "../core/parallel.h"
#include "../core/table.h"

namespace lavagna {

// y = x Wᵀ + b for a few rows of x: W is read once, from memory as a rule, and nothing else takes time.
struct SkinnyLinear {
  std::int64_t rows;     // 1 to skinny_linear_rows
  std::int64_t inputs;   // columns of W, at least 1
  std::int64_t outputs;  // rows of W
  const void* x;         // [rows, inputs], float32 or bfloat16
  std::int64_t x_row;    // numbers from one row of x to the next
  const void* weight;    // [outputs, inputs], contiguous, float32 or bfloat16
  const void* bias;      // [outputs] in the weight's format, or null
  void* y;               // [rows, outputs] in the format of x
  float* spread;         // skinny_linear_spread(inputs) · rows numbers
};

constexpr std::int64_t skinny_linear_rows = 4;

// Numbers that a row of x takes, spread for the vectors of any instruction set.
constexpr std::int64_t skinny_linear_spread(std::int64_t inputs) { return (inputs + 31) / 32 * 32; }

// The formats of x and W, "mixed" being a float32 x and a bfloat16 W.
enum SkinnyLinearFormats : int { skinny_float32, skinny_mixed, skinny_bfloat16 };

// A task is a row of W. Spread x first, on one thread.
struct SkinnyLinearKernels {
  void (*spread[3])(const SkinnyLinear&);
  Body run[3];
};

}  // namespace lavagna

LAVAGNA_KERNELS(SkinnyLinearKernels, skinny_linear)
