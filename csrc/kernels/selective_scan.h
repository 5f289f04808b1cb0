#pragma once

#include "../core/parallel.h"
#include "../core/sequences.h"
#include "../core/table.h"

namespace lavagna {

// B or C: [rows, G, N] with rows `row` numbers apart and groups `group`, which is 0 where all share one; or, where `row`
// is 0, constant over time and [D, N].
template <class T>
struct Coefficient {
  const T* data;
  std::int64_t row;
  std::int64_t group;
};

// [rows, D], rows `row` numbers apart.
template <class T>
struct Rows {
  const T* data;
  std::int64_t row;
};

// S6: N fading sums for each of D channels.
//
//   Δ_t = clamp(softplus(dt_t + dt_bias), low, high)        (softplus where it is asked for)
//   h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t x_t
//   y_t = (Σ_n C_t h_t + D x_t) · silu(z_t)
//
// The D channels are G groups of neighbours; what is absent is null. All but Rows and Coefficient is contiguous.
template <class T>
struct SelectiveScan {
  Sequences sequences;
  std::int64_t channels;
  std::int64_t states;
  std::int64_t groups;
  bool softplus;
  T low;
  T high;
  Rows<T> x;
  Rows<T> dt;
  Rows<T> z;
  const T* A;  // [D, N]
  Coefficient<T> B;
  Coefficient<T> C;
  const T* D;        // [D]
  const T* dt_bias;  // [D]
  const T* state;    // [M, D, N]
  T* y;              // [rows, D]
  T* final;          // [M, D, N]; may be the state itself in a step
  T* kept;           // the states before every tile, as the backward pass wants them
  T* scratch;        // of every thread

  // backward
  std::int64_t rows;    // of all sequences
  std::int64_t pieces;  // into which the channels of a group are cut
  Rows<T> dy;
  const T* d_final;
  T* dx;       // [rows, D]
  T* d_dt;     // [rows, D]
  T* dz;       // [rows, D]
  T* dB;  // timed: [pieces, rows, G, N], or [G · pieces, rows, N] where all groups share one; else [threads, D, N]
  T* dC;
  T* dA;       // [threads, D, N]
  T* dD;       // [threads, D]
  T* d_bias;   // [threads, D]
  T* d_state;  // [M, D, N]
};

// Tokens a tile: a state is kept for each.
constexpr std::int64_t selective_scan_tile = 16;
// Channels that lie together in kept states: a vector of the widest instruction set.
constexpr std::int64_t selective_scan_lanes = 16;
// States are padded to a multiple of this.
constexpr std::int64_t selective_scan_states = 4;
// Channels that go through a tile together, forward and backward.
constexpr std::int64_t selective_scan_forward_channels = 128;
constexpr std::int64_t selective_scan_backward_channels = 512;
// Channels whose numbers are taken from memory together, a strip: a row of them is some lines of one page. A task of the
// step has as many.
constexpr std::int64_t selective_scan_strip = 64;

struct SelectiveScanKernels {
  Body forward[2];  // float32, float64
  Body backward[2];
  Body step[2];
};

constexpr std::int64_t selective_scan_padded(std::int64_t states) {
  const std::int64_t multiple = (states + selective_scan_states - 1) / selective_scan_states * selective_scan_states;
  return multiple > 0 ? multiple : selective_scan_states;
}

constexpr std::int64_t selective_scan_blocks(std::int64_t channels, std::int64_t block) {
  return (channels + block - 1) / block;
}

// Numbers of a thread's scratch.
constexpr std::int64_t selective_scan_scratch(std::int64_t states, bool backward) {
  const std::int64_t padded = selective_scan_padded(states);
  const std::int64_t channels = backward ? selective_scan_backward_channels : selective_scan_forward_channels;
  const std::int64_t forward = 3 * selective_scan_strip * (selective_scan_tile + 1) + 4 * channels * padded;
  const std::int64_t pair = 2 * selective_scan_lanes * selective_scan_states * selective_scan_tile;
  return backward ? 8 * channels * (selective_scan_tile + 1) + 2 * channels + 7 * channels * padded + 2 * pair : forward;
}

}  // namespace lavagna

LAVAGNA_KERNELS(SelectiveScanKernels, selective_scan)
