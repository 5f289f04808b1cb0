// The selective scan forward: 16 states of a vector of channels in registers, time innermost.
#pragma once

#include "selective_scan_decay.h"
#include "selective_scan_tile.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Keep the state of one vector of channels; the last one of a group also fills its block of 16.
template <class T>
void keep(const SelectiveScan<T>& a, std::int64_t m, std::int64_t k, const Block& block, std::int64_t v, const T* h) {
  const std::int64_t padded = selective_scan_padded(a.states);
  T* to = kept_at(a, m, k, block, v);
  const T* next = kept_at(a, m, k + 1, block, v);
  for (std::int64_t n = 0; n < padded; ++n) {
    store(to + n * selective_scan_lanes, load(h + n * lanes<T>));
    __builtin_prefetch(next + n * selective_scan_lanes, 0, 2);
  }
  if (v + 1 < vectors<T>(block)) return;
  for (++v; v * lanes<T> % selective_scan_lanes != 0; ++v) {
    to = kept_at(a, m, k, block, v);
    for (std::int64_t n = 0; n < padded; ++n) store(to + n * selective_scan_lanes, Vec<T>{});
  }
}

// `delta` is Δ log2(e) throughout: to give the factor to A would make an error of rounding that is the same at every
// token, and grows with them.
//
// h ← exp(Δ A) h + u B and y += C h for `count` states of one vector of channels, through a tile.
template <int count, bool B_timed, bool C_timed, class T>
void scan(const Ahead& ahead, bool fetches, std::int64_t tokens, const T* delta, const T* u, const T* A, const T* B,
          std::int64_t B_step, const T* C, std::int64_t C_step, T* state, T* y) {
  const Decay<T> decay;
  Vec<T> h[count];
  LAVAGNA_UNROLL
  for (int n = 0; n < count; ++n) h[n] = load(state + n * lanes<T>);
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (fetches) ahead.fetch<3>(t);
    const Vec<T> delta_t = load(delta + t * lanes<T>);
    const Vec<T> u_t = load(u + t * lanes<T>);
    Vec<T> sums[2] = {load(y + t * lanes<T>), Vec<T>{}};
    LAVAGNA_UNROLL
    for (int n = 0; n < count; n += 2) {
      Vec<T> a[] = {delta_t * load(A + n * lanes<T>), delta_t * load(A + (n + 1) * lanes<T>)};
      decay(a);
      LAVAGNA_UNROLL
      for (int i = 0; i < 2; ++i) {
        h[n + i] = a[i] * h[n + i] + u_t * coefficient<B_timed>(B, t, B_step, n + i);
        sums[i] += h[n + i] * coefficient<C_timed>(C, t, C_step, n + i);
      }
    }
    store(y + t * lanes<T>, sums[0] + sums[1]);
  }
  LAVAGNA_UNROLL
  for (int n = 0; n < count; ++n) store(state + n * lanes<T>, h[n]);
}

template <class T, bool B_timed, bool C_timed>
void forward(const SelectiveScan<T>& a, std::int64_t begin, std::int64_t end, int thread) {
  constexpr std::int64_t wide = selective_scan_forward_channels;
  const std::int64_t padded = selective_scan_padded(a.states);
  Shelf<T> shelf(a.scratch + thread * selective_scan_scratch(a.states, false));
  T* const delta = shelf.take(strip * (tile + 1));
  T* const u = shelf.take(strip * (tile + 1));
  T* const y = shelf.take(strip * (tile + 1));
  T* const A = shelf.take(wide * padded);
  T* const h = shelf.take(wide * padded);
  Held<T> B(a.B, a.states, wide, shelf);
  Held<T> C(a.C, a.states, wide, shelf);

  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t blocks = selective_scan_blocks(in_group, wide);
  std::int64_t current = -1;
  Block block{};
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t m = task % a.sequences.count;
    if (task / a.sequences.count != current) {
      current = task / a.sequences.count;
      const std::int64_t group = current / blocks;
      const std::int64_t offset = current % blocks * wide;
      block = {group, group * in_group + offset, min_of(in_group - offset, wide)};
      turn_in(a.A + block.first * a.states, block.width, a.states, A);
      for (std::int64_t i = 0; i < vectors<T>(block) * padded; ++i)
        store(A + i * lanes<T>, bounded<T>(load(A + i * lanes<T>)));
      B.take_block(block);
      C.take_block(block);
    }
    turn_in(a.state + (m * a.channels + block.first) * a.states, block.width, a.states, h);
    const std::int64_t length = a.sequences.length(m);
    for (std::int64_t k = 0; k * tile < length; ++k) {
      const std::int64_t tokens = min_of(length - k * tile, tile);
      const std::int64_t row = a.sequences.begin(m) + k * tile;
      B.take_tile(row, tokens);
      C.take_tile(row, tokens);
      for (std::int64_t d = 0; d < block.width; d += strip) {
        const Block here = part(block, d);
        const From<T> x(a.x, row + tile), dt(a.dt, row + tile), z(a.z.data == nullptr ? a.x : a.z, row + tile);
        const Ahead ahead[] = {{a.y + row * a.channels + here.first, a.channels},
                               {dt.first + here.first, dt.step},
                               {x.first + here.first, x.step},
                               {z.first + here.first, z.step}};
        prepare(a, row, tokens, here, delta, u, y);
        for (std::int64_t i = 0; i < vectors<T>(here); ++i) {
          const std::int64_t v = d / lanes<T> + i;
          const std::int64_t at = i * pitch<T>;
          T* const h_v = h + v * padded * lanes<T>;
          const T* const A_v = A + v * padded * lanes<T>;
          if (a.kept != nullptr) keep(a, m, k, block, v, h_v);
          std::int64_t n = 0;
          for (; n + 16 <= padded; n += 16)
            scan<16, B_timed, C_timed>(ahead[i % 4], n == 0, tokens, delta + at, u + at, A_v + n * lanes<T>, B.at(v, n),
                                       B.step(), C.at(v, n), C.step(), h_v + n * lanes<T>, y + at);
          for (; n < padded; n += 4)
            scan<4, B_timed, C_timed>(ahead[i % 4], n == 0, tokens, delta + at, u + at, A_v + n * lanes<T>, B.at(v, n),
                                      B.step(), C.at(v, n), C.step(), h_v + n * lanes<T>, y + at);
        }
        gate(a, row, tokens, here, y);
      }
    }
    turn_out<false>(h, block.width, a.states, a.final + (m * a.channels + block.first) * a.states);
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
