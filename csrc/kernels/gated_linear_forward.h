// The chunk form: o_i = (q_i ∘ P(start→i))ᵀ S + Σ_{j≤i} weight_ij v_j, then S ← P(start→end) ∘ S + Σ_j (P(j→end) ∘ k_j) v_jᵀ.
#pragma once

#include "gated_linear_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Scratch of a part's forward pass; S [K, Sp] of each strip.
template <class T, bool channel>
struct Forward {
  Pieces<T> pieces;
  Chunk<T, channel> chunk;
  T* out;  // [C, Vp]
  T* S;
  std::int64_t S_row, state_size;

  Forward(const Part<T>& p, T* memory) : pieces{memory}, chunk(p, pieces) {
    const GatedLinear<T>& a = p.a;
    out = pieces.take(a.chunk * chunk.Vp);
    S_row = spread(chunk.Vp);
    state_size = chunk.K * S_row;
    S = pieces.take(a.part() * state_size);
  }
};

template <class T, bool channel>
void forward_part(const Part<T>& p, T* memory) {
  Forward<T, channel> f(p, memory);
  Chunk<T, channel>& x = f.chunk;
  const GatedLinear<T>& a = p.a;
  const std::int64_t K = x.K, Kp = x.Kp, Vp = x.Vp, Sp = f.S_row, HV = a.value_heads(), extra = a.normalizer ? 1 : 0;

  const auto state_of = [&](std::int64_t strip) { return f.S + (strip - p.first) * f.state_size; };
  const auto at = [&](std::int64_t strip) { return p.sequence * HV + p.value_head(strip); };

  for (std::int64_t s = p.first; s < p.last; ++s) {
    T* const S = state_of(s);
    gather(a.S + at(s) * K * a.values + p.column(s), a.values, K, p.width(s), T(1), S, K, Sp);
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) S[c * Sp + p.width(s)] = a.z[at(s) * K + c];
  }

  for (std::int64_t first = 0; first < p.length; first += a.chunk) {
    x.move(first);
    x.pairs();
    const std::int64_t C = x.C;
    std::int64_t head = -1;
    for (std::int64_t s = p.first; s < p.last; ++s) {
      T* const S = state_of(s);
      const std::int64_t width = p.width(s);
      if (p.value_head(s) != head) x.decays(head = p.value_head(s));
      x.values(s);
      if (a.kept != nullptr && first % a.keep == 0) {
        const std::int64_t slot = (a.slot(p.sequence) + first / a.keep) * HV + head;
        T* const kept = a.kept + (slot * (a.values + extra) + p.column(s)) * Kp;
        transpose(K, width + extra, S, Sp, kept, Kp);
        for (std::int64_t i = 0; i < width + extra; ++i)
          for (std::int64_t c = K; c < Kp; ++c) kept[i * Kp + c] = 0;
      }

      Ahead ahead;
      if (s + 1 < p.last) {
        ahead.add(p.v(x.start, s + 1), a.v_row, p.width(s + 1), x.tokens);
        ahead.add(p.o(x.start, s + 1), HV * a.values, p.width(s + 1), x.tokens);
      } else if (first + a.chunk < p.length) {
        const std::int64_t next = x.start + a.chunk, tokens = p.tokens(first + a.chunk);
        ahead.add(p.q(next), a.q_row, K, tokens);
        ahead.add(p.k(next), a.k_row, K, tokens);
        ahead.add(p.v(next, p.first), a.v_row, p.width(p.first), tokens);
        ahead.add(p.o(next, p.first), HV * a.values, p.width(p.first), tokens);
        if (channel) ahead.add(p.log_decay(next, p.value_head(p.first)), a.log_decay_row, K, tokens);
      }
      ahead.start(tile_count<T>(K, Vp));

      T* const o = p.o(x.start, s);
      const bool direct = x.tokens == C && width == Vp;  // rows of whole vectors, not divided by anything
      T* const out = direct ? o : f.out;
      const std::int64_t out_row = direct ? HV * a.values : Vp;
      // A panel of the state's columns at a time: what reads it brings it near for what writes it.
      constexpr std::int64_t panel = block_vectors * lanes<T>;
      for (std::int64_t start = 0; start < Vp; start += panel) {
        const std::int64_t columns = Vp - start < panel ? Vp - start : panel;
        tiles<T>(C, columns, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
          j += start;
          tile.add(K, x.reading + i * Kp, Kp, 1, S + j, Sp);
          if (!channel) tile.scale(x.read + i);
          tile.add(i + tile.height, x.weights + i * C, C, 1, x.v + j, Vp);
          tile.put(out + i * out_row + j, out_row);
        });
        tiles<T>(K, columns, [&](auto tile, std::int64_t c, std::int64_t j) LAVAGNA_LAMBDA {
          j += start;
          ahead.some();
          tile.take(S + c * Sp + j, Sp);
          tile.scale(x.total + c);
          tile.add(x.tokens, x.writing + c, 1, Kp, x.written + j, Vp);
          tile.put(S + c * Sp + j, Sp);
        });
      }
      if (a.normalizer)
        for (std::int64_t i = 0; i < x.tokens; ++i) {
          const T weight = out[i * Vp + width] + a.epsilon;
          a.weight[(x.start + i) * HV + head] = weight;
          for (std::int64_t j = 0; j < Vp; j += lanes<T>) store(out + i * Vp + j, load(out + i * Vp + j) / weight);
        }
      if (!direct) scatter(out, Vp, x.tokens, width, T(1), o, HV * a.values);
    }
  }

  for (std::int64_t s = p.first; s < p.last; ++s) {
    const T* const S = state_of(s);
    scatter(S, Sp, K, p.width(s), T(1), a.final_S + at(s) * K * a.values + p.column(s), a.values);
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) a.final_z[at(s) * K + c] = S[c * Sp + p.width(s)];
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
