#pragma once

#include "../core/parallel.h"
#include "../core/sequences.h"
#include "../core/table.h"

namespace lavagna {

// y_t = act(bias + Σ_w weight[:, w] · x_{t−W+1+w}), each sequence behind the W − 1 rows of its state.
//
// Rows of x and dy are x_row and dy_row numbers apart; everything else is contiguous.
template <class T>
struct ShortConv {
  Sequences sequences;
  std::int64_t channels;
  std::int64_t width;
  bool silu;
  const T* x;       // [rows, D]
  std::int64_t x_row;
  const T* weight;  // [D, W]
  const T* bias;    // [D] or null
  const T* state;   // [M, W−1, D]
  T* y;             // [rows, D]
  T* tail;          // [M, W−1, D]; may be the state itself where each sequence has one token

  // backward
  const T* dy;
  std::int64_t dy_row;
  const T* d_tail;
  T* dx;       // [rows, D]
  T* d_weight;  // [D, W]
  T* d_bias;    // [D] or null
  T* d_state;   // [M, W−1, D]
};

// A task is a block of channels, in all sequences.
constexpr std::int64_t short_conv_block = 64;
constexpr std::int64_t short_conv_widest = 8;

struct ShortConvKernels {
  Body forward[2];  // float32, float64
  Body backward[2];
};

}  // namespace lavagna

LAVAGNA_KERNELS(ShortConvKernels, short_conv)
