// What all passes of the selective scan do with a tile, a few tokens of some channels: Δ before its states are run
// through, the gate after it, B and C, and the states that are kept for the way back.
#pragma once

#include "selective_scan_channels.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Δ of a strip of channels in a tile: `use` gets it with the token, the channels, where they lie among [vectors, tokens,
// lanes], and, where it is asked for, the slope dΔ / d dt. In two loops, one after the other: a chain of dependent
// operations as long as both together would fill what the processor can look ahead.
template <bool with_slope, class T, class Use>
LAVAGNA_INLINE void steps(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block,
                          const Use& use) {
  const From<T> dt(a.dt, row);
  const Vec<T> low = splat(a.low), high = splat(a.high);
  const bool soft = a.softplus;
  const std::int64_t count = vectors<T>(block);
  T raws[strip * (tile + 1)], smalls[strip * (tile + 1)];  // dt + bias and e^−|dt + bias|
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < count; ++v) {
      const Channels<T> channels(block, v);
      const std::int64_t at = v * pitch<T> + t * lanes<T>;
      const Vec<T> raw = channels.get(dt.at(t)) + channels.get_or_zero(a.dt_bias);
      store(raws + at, raw);
      if (soft) store(smalls + at, exact_exp<T>(min<T>(raw, -raw)));
    }
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < count; ++v) {
      const std::int64_t at = v * pitch<T> + t * lanes<T>;
      const Vec<T> raw = load(raws + at);
      Vec<T> delta = raw, slope = splat(T(1));
      if (soft) {
        const Vec<T> small = load(smalls + at);
        delta = softplus<T>(raw, small);
        const Vec<T> above = T(1) / (T(1) + small);
        if (with_slope) slope = raw < 0 ? small * above : above;
      }
      if (with_slope) slope = (delta < low) | (delta > high) ? Vec<T>{} : slope;
      use(t, Channels<T>(block, v), at, min<T>(high, max<T>(low, delta)), slope);
    }
}

// Δ log2(e), u = Δ x and the skip, with which y begins.
template <class T>
void prepare(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block, T* delta, T* u,
             T* y) {
  const From<T> x(a.x, row);
  const auto use = [&](std::int64_t t, const Channels<T>& channels, std::int64_t at, Vec<T> delta_t, Vec<T>)
                       LAVAGNA_LAMBDA {
    const Vec<T> x_t = channels.get(x.at(t));
    store(delta + at, delta_t * log2_e<T>);
    store(u + at, delta_t * x_t);
    store(y + at, channels.get_or_zero(a.D) * x_t);
  };
  steps<false>(a, row, tokens, block, use);
}

template <class T>
void gate(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block, const T* y) {
  const From<T> z(a.z, row);
  T* const out = a.y + row * a.channels;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < vectors<T>(block); ++v) {
      const Channels<T> channels(block, v);
      Vec<T> y_t = load(y + v * pitch<T> + t * lanes<T>);
      if (z.first != nullptr) {
        const Vec<T> z_t = channels.get(z.at(t));
        y_t *= z_t * sigmoid<T>(z_t);
      }
      channels.put(out + t * a.channels, y_t);
    }
}

// B or C of a block during a tile: [tile, padded N], or [vectors, padded N, lanes] where constant over time.
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
    for (std::int64_t t = 0; t < tokens; ++t) {
      const T* from = from_.data + (row + t) * from_.row + group_ * from_.group;
      T* to = held_ + t * padded_;
      for (std::int64_t n = 0; n < states_; ++n) to[n] = from[n];
      for (std::int64_t n = states_; n < padded_; ++n) to[n] = T(0);
    }
  }
  // Where the tile's numbers for states from n on lie, for vector v.
  const T* at(std::int64_t v, std::int64_t n) const {
    return timed() ? held_ + n : held_ + (v * padded_ + n) * lanes<T>;
  }

 private:
  Coefficient<T> from_;
  std::int64_t states_;
  std::int64_t padded_;
  std::int64_t group_ = 0;
  T* held_;
};

template <bool timed, class T>
LAVAGNA_INLINE Vec<T> coefficient(const T* held, std::int64_t token, std::int64_t padded, int n) {
  if constexpr (timed) return splat(held[token * padded + n]);
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
