// What all passes of the selective scan do with a tile, a few tokens of some channels: Δ before its states are run
// through, the gate after it, B and C, and the states that are kept for the way back.
#pragma once

#include <type_traits>

#include "selective_scan_channels.h"
#include "selective_scan_decay.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Δ of some channels in a tile: `use` gets it with the token, which of the vectors it is, and, where it is asked for, the
// slope dΔ / d dt. In two loops, one after the other: chains of dependent operations as long as both together would fill
// what the processor can look ahead.
template <bool with_slope, class T, class Some, class Use>
LAVAGNA_INLINE void steps(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Some& channels,
                          const Use& use) {
  constexpr int many = Some::vectors;
  const From<T> dt(a.dt, row);
  const Decay<T> decay;
  const Vec<T> low = splat(a.low), high = splat(a.high);
  const bool soft = a.softplus;
  Vec<T> bias[many];
  LAVAGNA_UNROLL
  for (int i = 0; i < many; ++i) bias[i] = channels.get_or_zero(a.dt_bias, i);
  alignas(LAVAGNA_VECTOR_BYTES) T raws[tile * many * lanes<T>];
  alignas(LAVAGNA_VECTOR_BYTES) T quotients[tile * many * lanes<T>];  // s of softplus
  for (std::int64_t t = 0; t < tokens; ++t)
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) {
      const Vec<T> raw = channels.get(dt.at(t), i) + bias[i];
      store(raws + (t * many + i) * lanes<T>, raw);
      if (soft) {
        const Vec<T> w = decay.small(min<T>(raw, -raw));
        store(quotients + (t * many + i) * lanes<T>, (w + w) / (T(2) + w));
      }
    }
  for (std::int64_t t = 0; t < tokens; ++t)
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) {
      const Vec<T> raw = load(raws + (t * many + i) * lanes<T>);
      Vec<T> delta = raw, slope = splat(T(1));
      if (soft) {
        const Vec<T> s = load(quotients + (t * many + i) * lanes<T>);
        delta = softplus<T>(raw, s);
        if (with_slope) slope = (raw < 0 ? s + s : T(2) - s) / (T(2) + s);
      }
      if (with_slope) slope = (delta < low) | (delta > high) ? Vec<T>{} : slope;
      use(t, i, min<T>(high, max<T>(low, delta)), slope);
    }
}

// Δ log2(e), u = Δ x and the skip, with which y begins.
template <class T>
void prepare(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block, T* delta, T* u,
             T* y) {
  const From<T> x(a.x, row);
  in_vectors<T>(block, [&](const auto& channels, std::int64_t v) LAVAGNA_LAMBDA {
    constexpr int many = std::remove_reference_t<decltype(channels)>::vectors;
    Vec<T> skip[many];
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) skip[i] = channels.get_or_zero(a.D, i);
    steps<false>(a, row, tokens, channels, [&](std::int64_t t, int i, Vec<T> delta_t, Vec<T>) LAVAGNA_LAMBDA {
      const Vec<T> x_t = channels.get(x.at(t), i);
      const std::int64_t at = (v + i) * pitch<T> + t * lanes<T>;
      store(delta + at, delta_t * log2_e<T>);
      store(u + at, delta_t * x_t);
      store(y + at, skip[i] * x_t);
    });
  });
}

template <class T>
void gate(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block, const T* y) {
  const Decay<T> decay;
  const From<T> z(a.z, row);
  T* const out = a.y + row * a.channels;
  in_vectors<T>(block, [&](const auto& channels, std::int64_t v) LAVAGNA_LAMBDA {
    for (std::int64_t t = 0; t < tokens; ++t)
      LAVAGNA_UNROLL
      for (int i = 0; i < std::remove_reference_t<decltype(channels)>::vectors; ++i) {
        Vec<T> y_t = load(y + (v + i) * pitch<T> + t * lanes<T>);
        if (z.first != nullptr) {
          const Vec<T> z_t = channels.get(z.at(t), i);
          Vec<T> closed[] = {z_t * -log2_e<T>};
          decay(closed);
          y_t = y_t * z_t / (T(1) + closed[0]);
        }
        channels.put(out + t * a.channels, i, y_t);
      }
  });
}

// B or C of a block during a tile: rows of padded N, taken where they are if N needs no padding; or, where constant over
// time, [vectors, padded N, lanes].
template <class T>
class Held {
 public:
  Held(const Coefficient<T>& from, std::int64_t states, std::int64_t channels, Shelf<T>& shelf)
      : from_(from), states_(states), padded_(selective_scan_padded(states)) {
    held_ = shelf.take((tile > channels ? tile : channels) * padded_);
  }
  bool timed() const { return from_.row != 0; }

  void take_block(const Block& block) {
    group_ = block.group;
    if (!timed()) turn_in(from_.data + block.first * states_, block.width, states_, held_);
  }
  void take_tile(std::int64_t row, std::int64_t tokens) {
    if (!timed()) return;
    tile_ = from_.data + row * from_.row + group_ * from_.group;
    step_ = from_.row;
    if (states_ == padded_) return;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t n = 0; n < padded_; ++n) held_[t * padded_ + n] = n < states_ ? tile_[t * step_ + n] : T(0);
    tile_ = held_;
    step_ = padded_;
  }
  // From one token to the next.
  std::int64_t step() const { return step_; }
  // Where the tile's numbers for states from n on lie, for vector v.
  const T* at(std::int64_t v, std::int64_t n) const {
    return timed() ? tile_ + n : held_ + (v * padded_ + n) * lanes<T>;
  }

 private:
  Coefficient<T> from_;
  std::int64_t states_;
  std::int64_t padded_;
  std::int64_t group_ = 0;
  T* held_;
  const T* tile_ = nullptr;
  std::int64_t step_ = 0;
};

template <bool timed, class T>
LAVAGNA_INLINE Vec<T> coefficient(const T* held, std::int64_t token, std::int64_t step, int n) {
  if constexpr (timed) return splat(held[token * step + n]);
  return load(held + n * lanes<T>);
}

// Where the state before a tile is kept: [tiles, blocks of 16 channels, padded N, 16].
template <class T>
LAVAGNA_INLINE T* kept_at(const SelectiveScan<T>& a, std::int64_t m, std::int64_t k, const Block& block,
                          std::int64_t v) {
  constexpr std::int64_t wide = selective_scan_lanes;
  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t blocks = selective_scan_blocks(in_group, wide);
  const std::int64_t channel = block.first - block.group * in_group + v * lanes<T>;
  const std::int64_t before = a.sequences.begin(m) / tile + m + k;  // at least the tiles of the sequences before
  const std::int64_t at = (before * a.groups + block.group) * blocks + channel / wide;
  return a.kept + at * selective_scan_padded(a.states) * wide + channel % wide;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
