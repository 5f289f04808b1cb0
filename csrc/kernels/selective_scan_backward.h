// The selective scan's gradients: from tile to tile backwards, and what leads from the states' gradients to the
// inputs'.
#pragma once

#include <type_traits>

#include "selective_scan_sweep.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Sums of a timed coefficient over channels in the lanes, [tokens, 4, lanes], go to the rows of its gradient; to a part
// of it that this piece of the channels has for itself. `first` says that nothing is there yet.
template <class T>
void collect(const SelectiveScan<T>& a, const Coefficient<T>& coefficient, const T* from, std::int64_t row,
             std::int64_t tokens, std::int64_t group, std::int64_t piece, std::int64_t n0, bool first, T* gradient) {
  constexpr std::int64_t count = selective_scan_states;
  T total[tile * count];
  for (std::int64_t i = 0; i < tokens * count; i += lanes<T>) {
    Vec<T> parts[lanes<T>];
    LAVAGNA_UNROLL
    for (int l = 0; l < lanes<T>; ++l) parts[l] = load(from + (i + l) * lanes<T>);
    store(total + i, sums<T>(parts));
  }
  const bool shared = coefficient.group == 0;
  const std::int64_t part = shared ? group * a.pieces + piece : piece;
  const std::int64_t width = (shared ? 1 : a.groups) * a.states;
  T* const to = gradient + (part * a.rows + row) * width + group * coefficient.group + n0;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t n = 0; n < min_of(count, a.states - n0); ++n)
      to[t * width + n] = total[t * count + n] + (first ? T(0) : to[t * width + n]);
}

template <class T>
void clear(T* memory, std::int64_t numbers) {
  for (std::int64_t i = 0; i < numbers; i += lanes<T>) store(memory + i, Vec<T>{});
}

// What the backward pass holds of a tile, [vectors of channels, tokens, lanes] each.
template <class T>
struct Work {
  T* delta;    // Δ log2(e)
  T* u;        // Δ x
  T* dy;       // behind the gate
  T* y;        // before the gate
  T* du;
  T* d_delta;  // what comes through the decays alone
  T* slope;    // dΔ / d dt
  T* dz;       // dz / dy before the gate

  Work(std::int64_t channels, Shelf<T>& shelf) {
    for (T** part : {&delta, &u, &dy, &y, &du, &d_delta, &slope, &dz}) *part = shelf.take(channels * (tile + 1));
  }
  Work of(std::int64_t v) const {
    Work one = *this;
    for (T** part : {&one.delta, &one.u, &one.dy, &one.y, &one.du, &one.d_delta, &one.slope, &one.dz})
      *part += v * pitch<T>;
    return one;
  }
};

template <class T>
void prepare_back(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block,
                  const Work<T>& work) {
  const Decay<T> decay;
  const From<T> x(a.x, row), z(a.z, row), dy(a.dy, row);
  in_vectors<T>(block, [&](const auto& channels, std::int64_t v) LAVAGNA_LAMBDA {
    constexpr int many = std::remove_reference_t<decltype(channels)>::vectors;
    Vec<T> skip[many];
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) skip[i] = channels.get_or_zero(a.D, i);
    steps<true>(a, row, tokens, channels, [&](std::int64_t t, int i, Vec<T> delta_t, Vec<T> slope) LAVAGNA_LAMBDA {
      const Vec<T> x_t = channels.get(x.at(t), i);
      const std::int64_t at = (v + i) * pitch<T> + t * lanes<T>;
      store(work.delta + at, delta_t * log2_e<T>);
      store(work.slope + at, slope);
      store(work.u + at, delta_t * x_t);
      store(work.y + at, skip[i] * x_t);
    });
    for (std::int64_t t = 0; t < tokens; ++t)
      LAVAGNA_UNROLL
      for (int i = 0; i < many; ++i) {
        const std::int64_t at = (v + i) * pitch<T> + t * lanes<T>;
        Vec<T> dy_t = channels.get(dy.at(t), i);
        if (z.first != nullptr) {
          const Vec<T> z_t = channels.get(z.at(t), i);
          Vec<T> closed[] = {z_t * -log2_e<T>};
          decay(closed);
          const Vec<T> open = T(1) / (T(1) + closed[0]);
          store(work.dz + at, dy_t * open * (T(1) + z_t * (T(1) - open)));
          dy_t *= z_t * open;
        }
        store(work.dy + at, dy_t);
      }
  });
}

template <class T>
void finish_back(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block,
                 const Work<T>& work, T* dD, T* d_bias) {
  const From<T> x(a.x, row);
  T* const dx = a.dx + row * a.channels;
  T* const d_dt = a.d_dt + row * a.channels;
  T* const dz = a.z.data == nullptr ? nullptr : a.dz + row * a.channels;
  in_vectors<T>(block, [&](const auto& channels, std::int64_t v) LAVAGNA_LAMBDA {
    constexpr int many = std::remove_reference_t<decltype(channels)>::vectors;
    Vec<T> skip[many], dD_sum[many], d_bias_sum[many];
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) {
      skip[i] = channels.get_or_zero(a.D, i);
      dD_sum[i] = load(dD + (v + i) * lanes<T>);
      d_bias_sum[i] = load(d_bias + (v + i) * lanes<T>);
    }
    for (std::int64_t t = 0; t < tokens; ++t)
      LAVAGNA_UNROLL
      for (int i = 0; i < many; ++i) {
        const std::int64_t at = (v + i) * pitch<T> + t * lanes<T>;
        const Vec<T> x_t = channels.get(x.at(t), i);
        const Vec<T> dy_t = load(work.dy + at);
        const Vec<T> du_t = load(work.du + at);
        const Vec<T> d_dt_t = (load(work.d_delta + at) + du_t * x_t) * load(work.slope + at);
        dD_sum[i] += dy_t * x_t;
        d_bias_sum[i] += d_dt_t;
        channels.put(dx + t * a.channels, i, du_t * (load(work.delta + at) * ln_2<T>) + skip[i] * dy_t);
        channels.put(d_dt + t * a.channels, i, d_dt_t);
        if (dz != nullptr) channels.put(dz + t * a.channels, i, load(work.y + at) * load(work.dz + at));
      }
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) {
      store(dD + (v + i) * lanes<T>, dD_sum[i]);
      store(d_bias + (v + i) * lanes<T>, d_bias_sum[i]);
    }
  });
}

template <class T, bool B_timed, bool C_timed>
void backward(const SelectiveScan<T>& a, std::int64_t begin, std::int64_t end, int thread) {
  constexpr std::int64_t wide = selective_scan_backward_channels;
  constexpr std::int64_t count = selective_scan_states;
  const std::int64_t padded = selective_scan_padded(a.states);
  Shelf<T> shelf(a.scratch + thread * selective_scan_scratch(a.states, true));
  const Work<T> work(wide, shelf);
  T* const dD = shelf.take(wide);
  T* const d_bias = shelf.take(wide);
  T* const A = shelf.take(wide * padded);
  T* const dA = shelf.take(wide * padded);
  T* const carry = shelf.take(wide * padded);
  T* const dB = shelf.take(B_timed ? tile * count * lanes<T> : wide * padded);
  T* const dC = shelf.take(C_timed ? tile * count * lanes<T> : wide * padded);
  T* const decays = shelf.take(2 * tile * count * lanes<T>);
  T* const lefts = shelf.take(2 * tile * count * lanes<T>);
  Held<T> B(a.B, a.states, wide, shelf);
  Held<T> C(a.C, a.states, wide, shelf);

  // A task is a piece of a group in one sequence; those of one piece lie together.
  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t in_piece =
      selective_scan_blocks(selective_scan_blocks(in_group, a.pieces), selective_scan_lanes) * selective_scan_lanes;
  const std::int64_t M = a.sequences.count;
  for (std::int64_t task = begin; task < end;) {
    const std::int64_t group = task / M / a.pieces;
    const std::int64_t piece = task / M % a.pieces;
    const std::int64_t piece_end = min_of((task / M + 1) * M, end);
    const std::int64_t channel_end = min_of((piece + 1) * in_piece, in_group);
    for (std::int64_t offset = piece * in_piece; offset < channel_end; offset += wide) {
      const Block block{group, group * in_group + offset, min_of(channel_end - offset, wide)};
      const std::int64_t width = block.width;
      const std::int64_t count_v = vectors<T>(block);
      turn_in(a.A + block.first * a.states, width, a.states, A);
      for (std::int64_t i = 0; i < count_v * padded; ++i) store(A + i * lanes<T>, bounded<T>(load(A + i * lanes<T>)));
      B.take_block(block);
      C.take_block(block);
      clear(dA, count_v * padded * lanes<T>);
      if (!B_timed) clear(dB, count_v * padded * lanes<T>);
      if (!C_timed) clear(dC, count_v * padded * lanes<T>);
      clear(dD, count_v * lanes<T>);
      clear(d_bias, count_v * lanes<T>);
      for (std::int64_t m = task % M; m < task % M + piece_end - task; ++m) {
        turn_in(a.d_final + (m * a.channels + block.first) * a.states, width, a.states, carry);
        const std::int64_t length = a.sequences.length(m);
        for (std::int64_t k = (length + tile - 1) / tile - 1; k >= 0; --k) {
          const std::int64_t tokens = min_of(length - k * tile, tile);
          const std::int64_t row = a.sequences.begin(m) + k * tile;
          B.take_tile(row, tokens);
          C.take_tile(row, tokens);
          for (std::int64_t d = 0; d < width; d += strip)
            prepare_back(a, row, tokens, part(block, d), work.of(d / lanes<T>));
          for (std::int64_t n = 0; n < padded; n += count) {
            if (B_timed) clear(dB, tile * count * lanes<T>);
            if (C_timed) clear(dC, tile * count * lanes<T>);
            const auto vectors_from = [&](auto number, std::int64_t v) {
              constexpr int together = decltype(number)::value;
              const T* kept[together];
              const T* next[together];
              for (int i = 0; i < together; ++i) {
                kept[i] = kept_at(a, m, k, block, v + i);
                next[i] = kept_at(a, m, k > 0 ? k - 1 : k, block, v + i);
              }
              // In the first round: the inputs of the tile before this one, then what this one writes in the end.
              const std::int64_t d = v * lanes<T> / strip * strip + block.first;
              const bool inputs = v * lanes<T> % strip == 0;
              const std::int64_t above = row - tile;
              const Rows<T>& z = a.z.data == nullptr ? a.x : a.z;
              T* const dz = a.z.data == nullptr ? a.dx : a.dz;
              const Ahead ahead[2][4] = {{{a.dx + row * a.channels + d, a.channels},
                                          {a.d_dt + row * a.channels + d, a.channels},
                                          {dz + row * a.channels + d, a.channels},
                                          {a.dy.data + above * a.dy.row + d, a.dy.row}},
                                         {{a.x.data + above * a.x.row + d, a.x.row},
                                          {a.dt.data + above * a.dt.row + d, a.dt.row},
                                          {z.data + above * z.row + d, z.row},
                                          {a.dy.data + above * a.dy.row + d, a.dy.row}}};
              const T* const A_v = A + v * padded * lanes<T>;
              const std::int64_t constant = (v * padded + n) * lanes<T>;
              const Work<T> here = work.of(v);
              recompute<together, count, B_timed, C_timed>(ahead[inputs], n == 0 ? 4 : 0, tokens, here.delta, here.u,
                                                           A_v, B, C, v, n, padded, kept, next, here.dy, decays, lefts, here.y,
                                                           C_timed ? dC : dC + constant);
              const Sums<T> sums{B_timed ? dB : dB + constant, dA + v * padded * lanes<T>, here.du, here.d_delta,
                                 n == 0};
              sweep<together, count, B_timed, C_timed>(tokens, here.delta, here.u, here.dy, A_v, B, C, v, n, padded,
                                                       decays, lefts, carry + v * padded * lanes<T>, sums);
            };
            std::int64_t v = 0;
            for (; v + 2 <= count_v; v += 2) vectors_from(std::integral_constant<int, 2>(), v);
            if (v < count_v) vectors_from(std::integral_constant<int, 1>(), v);
            const bool first = offset == piece * in_piece;
            if (B_timed) collect(a, a.B, dB, row, tokens, group, piece, n, first, a.dB);
            if (C_timed) collect(a, a.C, dC, row, tokens, group, piece, n, first, a.dC);
          }
          for (std::int64_t d = 0; d < width; d += strip)
            finish_back(a, row, tokens, part(block, d), work.of(d / lanes<T>), dD + d, d_bias + d);
        }
        turn_out<false>(carry, width, a.states, a.d_state + (m * a.channels + block.first) * a.states);
      }
      const std::int64_t slot = thread * a.channels + block.first;
      for (std::int64_t i = 0; i < count_v * padded; ++i) store(dA + i * lanes<T>, load(dA + i * lanes<T>) * ln_2<T>);
      turn_out<true>(dA, width, a.states, a.dA + slot * a.states);
      if (!B_timed) turn_out<true>(dB, width, a.states, a.dB + slot * a.states);
      if (!C_timed) turn_out<true>(dC, width, a.states, a.dC + slot * a.states);
      T* const dD_row = a.dD + thread * a.channels + block.first;
      T* const d_bias_row = a.d_bias + thread * a.channels + block.first;
      for (std::int64_t v = 0; v < count_v; ++v) {
        if (a.D != nullptr) put(dD_row, v, width, get(dD_row, v, width) + load(dD + v * lanes<T>));
        if (a.dt_bias != nullptr) put(d_bias_row, v, width, get(d_bias_row, v, width) + load(d_bias + v * lanes<T>));
      }
    }
    task = piece_end;
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
