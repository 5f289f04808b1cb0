#pragma once

#include "../core/parallel.h"
#include "../core/table.h"

namespace lavagna {

// What the machine itself can do: the rates that benchmarks hold kernels against.
struct Limits {
  float* data;  // [count]
  std::int64_t count;
  std::int64_t repeats;
  float* sums;  // [tasks], what every task computed, so that no work can be left out
};

// Numbers of `data` in one task of `read` and `update`: 64 KB, which leaves both in the middle of nothing.
constexpr std::int64_t limits_piece = 1 << 14;

struct LimitsKernels {
  Body multiply_add;           // repeats × multiply_adds products and sums in registers, nothing read or written
  std::int64_t multiply_adds;
  Body exponentials;           // repeats × count
  Body read;                   // all of data, once
  Body update;                 // all of data, read and written in place, once
};

}  // namespace lavagna

LAVAGNA_KERNELS(LimitsKernels, limits)
