// The chunk form: o_i = (q_i ∘ P(start→i))ᵀ S + Σ_{j≤i} weight_ij v_j, then S ← P(start→end) ∘ S + Σ_j (P(j→end) ∘ k_j) v_jᵀ.
#pragma once

#include "gated_linear_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Scratch of a part's forward pass; S [K, Vp] of each strip.
template <class T, bool channel>
struct Forward {
  Pieces<T> pieces;
  Chunk<T, channel> chunk;
  T* out;  // [C, Vp]
  T* S;
  std::int64_t state_size;

  Forward(const Part<T>& p, T* memory) : pieces{memory}, chunk(p, pieces) {
    const GatedLinear<T>& a = p.a;
    out = pieces.take(a.chunk * chunk.Vp);
    state_size = chunk.K * chunk.Vp;
    S = pieces.take(a.part() * state_size);
  }
};

template <class T, bool channel>
void forward_part(const Part<T>& p, T* memory) {
  Forward<T, channel> f(p, memory);
  Chunk<T, channel>& x = f.chunk;
  const GatedLinear<T>& a = p.a;
  const std::int64_t K = x.K, Kp = x.Kp, Vp = x.Vp, extra = a.normalizer ? 1 : 0;

  const auto state_of = [&](std::int64_t strip) { return f.S + (strip - p.first) * f.state_size; };
  const auto at = [&](std::int64_t strip) { return p.sequence * a.value_heads() + p.value_head(strip); };

  for (std::int64_t s = p.first; s < p.last; ++s) {
    T* const S = state_of(s);
    gather(a.S + at(s) * K * a.values + p.column(s), a.values, K, p.width(s), T(1), S, K, Vp);
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) S[c * Vp + p.width(s)] = a.z[at(s) * K + c];
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
        const std::int64_t slot = (a.slot(p.sequence) + first / a.keep) * a.value_heads() + head;
        T* const kept = a.kept + (slot * (a.values + extra) + p.column(s)) * Kp;
        transpose(K, width + extra, S, Vp, kept, Kp);
        for (std::int64_t i = 0; i < width + extra; ++i)
          for (std::int64_t c = K; c < Kp; ++c) kept[i * Kp + c] = 0;
      }

      T* const o = a.o + (x.start * a.value_heads() + head) * a.values + p.column(s);
      const bool direct = x.tokens == C && width == Vp;  // rows of whole vectors, not divided by anything
      T* const out = direct ? o : f.out;
      const std::int64_t out_row = direct ? a.value_heads() * a.values : Vp;
      tiles<T>(C, Vp, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
        tile.add(K, x.reading + i * Kp, Kp, 1, S + j, Vp);
        if (!channel) tile.scale(x.read + i);
        tile.add(i + tile.height, x.weights + i * C, C, 1, x.v + j, Vp);
        tile.put(out + i * out_row + j, out_row);
      });
      if (a.normalizer)
        for (std::int64_t i = 0; i < x.tokens; ++i) {
          const T weight = out[i * Vp + width] + a.epsilon;
          a.weight[(x.start + i) * a.value_heads() + head] = weight;
          for (std::int64_t j = 0; j < Vp; j += lanes<T>) store(out + i * Vp + j, load(out + i * Vp + j) / weight);
        }
      if (!direct) scatter(out, Vp, x.tokens, width, T(1), o, a.value_heads() * a.values);

      tiles<T>(K, Vp, [&](auto tile, std::int64_t c, std::int64_t j) LAVAGNA_LAMBDA {
        tile.take(S + c * Vp + j, Vp);
        tile.scale(x.total + c);
        tile.add(x.tokens, x.writing + c, 1, Kp, x.written + j, Vp);
        tile.put(S + c * Vp + j, Vp);
      });
    }
  }

  for (std::int64_t s = p.first; s < p.last; ++s) {
    const T* const S = state_of(s);
    scatter(S, Vp, K, p.width(s), T(1), a.final_S + at(s) * K * a.values + p.column(s), a.values);
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) a.final_z[at(s) * K + c] = S[c * Vp + p.width(s)];
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
