// One token of the selective scan, in place.
#pragma once

#include <type_traits>

#include "selective_scan_decay.h"
#include "selective_scan_tile.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// B or C of a token: N numbers for each channel, `step` apart, which is 0 where the channels share them.
template <class T>
struct TokenRows {
  const T* first;
  std::int64_t step;

  TokenRows(const SelectiveScan<T>& a, const Coefficient<T>& from, std::int64_t m, std::int64_t group,
            std::int64_t channel)
      : first(from.row == 0 ? from.data + channel * a.states : from.data + m * from.row + group * from.group),
        step(from.row == 0 ? a.states : 0) {}
};

// What a token does to the states of some channels. `States` is a number, or one that the compiler knows.
template <class T, class States>
struct Step {
  States N;
  const T* A;
  const T* state;
  T* final;
  TokenRows<T> B, C;

  // h ← exp(Δ A) h + u B and parts += C h for a vector of states of some channels: the chains of operations of one alone
  // leave the processor waiting. Not `whole`: the last `left` states.
  template <int channels, bool whole>
  LAVAGNA_INLINE void update(std::int64_t i, std::int64_t n, int left, const T* delta, const T* u,
                             Vec<T>* parts) const {
    const auto get = [left](const T* from) LAVAGNA_LAMBDA { return whole ? load(from) : load_part(from, left); };
    const Decay<T> decay;
    Vec<T> fade[channels];
    LAVAGNA_UNROLL
    for (int c = 0; c < channels; ++c) fade[c] = delta[i + c] * bounded<T>(get(A + (i + c) * N + n));
    decay(fade);
    LAVAGNA_UNROLL
    for (int c = 0; c < channels; ++c) {
      const std::int64_t at = (i + c) * N + n;
      const Vec<T> h = fade[c] * get(state + at) + u[i + c] * get(B.first + (i + c) * B.step + n);
      if constexpr (whole)
        store(final + at, h);
      else
        store_part(final + at, h, left);
      parts[c] += h * get(C.first + (i + c) * C.step + n);
    }
  }

  // Σ_n C h of some channels from number i on, each in the lanes of its number.
  template <int channels>
  LAVAGNA_INLINE Vec<T> read(std::int64_t i, const T* delta, const T* u) const {
    Vec<T> parts[channels] = {};
    std::int64_t n = 0;
    for (; n + lanes<T> <= N; n += lanes<T>) update<channels, true>(i, n, lanes<T>, delta, u, parts);
    if (n < N) update<channels, false>(i, n, static_cast<int>(N - n), delta, u, parts);
    return sums<T, channels>(parts);
  }
};

// One token of sequence m for a strip of channels. States lie in the lanes here, for that is how the caller keeps them.
template <class T, class States>
void step(const SelectiveScan<T>& a, std::int64_t m, const Block& block, States N) {
  constexpr int together = lanes<T> < 4 ? lanes<T> : 4;
  T delta[strip * (tile + 1)], u[strip * (tile + 1)], y[strip * (tile + 1)];
  prepare(a, m, 1, block, delta, u, y);
  for (std::int64_t v = 0; v < vectors<T>(block); ++v) {
    const std::int64_t channel = block.first + v * lanes<T>;
    const std::int64_t width = min_of(block.width - v * lanes<T>, lanes<T>);
    const std::int64_t at = (m * a.channels + channel) * N;
    const Step<T, States> token{N, a.A + channel * N, a.state + at, a.final + at, {a, a.B, m, block.group, channel},
                                {a, a.C, m, block.group, channel}};
    const T* const delta_v = delta + v * pitch<T>;
    const T* const u_v = u + v * pitch<T>;
    Vec<T> parts[lanes<T> / together] = {};
    T rest[lanes<T>] = {};
    std::int64_t i = 0;
    for (; i + together <= width; i += together) parts[i / together] = token.template read<together>(i, delta_v, u_v);
    for (; i < width; ++i) rest[i] = sum<T>(token.template read<1>(i, delta_v, u_v));
    store(y + v * pitch<T>, load(y + v * pitch<T>) + load(rest) + sums<T, lanes<T> / together, together>(parts));
  }
  gate(a, m, 1, block, y);
}

template <class T>
void step(const SelectiveScan<T>& a, std::int64_t m, const Block& block) {
  // Mamba's N, with which all addresses are those of a few rows.
  if (a.states == 16) return step(a, m, block, std::integral_constant<std::int64_t, 16>());
  step(a, m, block, a.states);
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
