// The chunk form: o_i = (q_i ∘ P(start→i))ᵀ S + Σ_{j≤i} weight_ij v_j, then S ← P(start→end) ∘ S + Σ_j (P(j→end) ∘ k_j) v_jᵀ.
#pragma once

#include "gated_linear_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Scratch of a part's forward pass. The S of a strip lies in panels of so many columns: what reads a panel brings it
// near for what writes it, and by itself it is one piece of memory.
template <class T>
constexpr std::int64_t panel = block_vectors * lanes<T>;

template <class T, class F, bool channel>
struct Forward {
  Pieces<T> pieces;
  Chunk<T, channel> chunk;
  ChunkFactors<T, F, channel> factors;
  T* out;  // [C, Vp]
  T* S;
  F* S_factors;  // pairs of keys
  std::int64_t state_size, factors_size;

  Forward(const Part<T>& p, T* memory) : pieces{memory}, chunk(p, pieces), factors(chunk, pieces) {
    const GatedLinear<T>& a = p.a;
    out = pieces.take(a.chunk * chunk.Vp);
    const std::int64_t width = (chunk.Vp + panel<T> - 1) / panel<T> * panel<T>;
    state_size = chunk.K * width;
    factors_size = steps<F>(chunk.K) * width;
    S = pieces.take(a.part() * state_size);
    S_factors = pieces.template factors<F>(S, per<F> * a.part() * factors_size);
  }
};

template <class T, class F, bool channel>
void forward_part(const Part<T>& p, T* memory) {
  Forward<T, F, channel> f(p, memory);
  ChunkFactors<T, F, channel>& factors = f.factors;
  Chunk<T, channel>& x = f.chunk;
  const GatedLinear<T>& a = p.a;
  const std::int64_t K = x.K, Kp = x.Kp, Vp = x.Vp, HV = a.value_heads(), extra = a.normalizer ? 1 : 0;

  const auto state_of = [&](std::int64_t strip) { return f.S + (strip - p.first) * f.state_size; };
  const auto factors_at = [&](std::int64_t strip) { return f.S_factors + (strip - p.first) * f.factors_size; };
  const auto within = [](std::int64_t columns) { return columns < 0 ? 0 : columns < panel<T> ? columns : panel<T>; };
  const auto at = [&](std::int64_t strip) { return p.sequence * HV + p.value_head(strip); };

  for (std::int64_t s = p.first; s < p.last; ++s) {
    T* const S = state_of(s);
    for (std::int64_t j = 0; j < Vp; j += panel<T>) {
      gather(a.S + at(s) * K * a.values + p.column(s) + j, a.values, K, within(p.width(s) - j), T(1), S + K * j, K,
             panel<T>);
    }
    const std::int64_t last = p.width(s) / panel<T> * panel<T>;
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) S[K * last + c * panel<T> + p.width(s) - last] = a.z[at(s) * K + c];
    for (std::int64_t j = 0; j < Vp; j += panel<T>)
      pack_across(K, panel<T>, S + K * j, factors_at(s) + steps<F>(K) * j, panel<T>);
  }

  for (std::int64_t first = 0; first < p.length; first += a.chunk) {
    x.move(first);
    x.pairs();
    if (!channel) factors.keys();
    const std::int64_t C = x.C;
    std::int64_t head = -1;
    for (std::int64_t s = p.first; s < p.last; ++s) {
      T* const S = state_of(s);
      const std::int64_t width = p.width(s);
      if (p.value_head(s) != head) {
        x.decays(head = p.value_head(s));
        if (channel) factors.keys();
        factors.decays();
      }
      x.values(s);
      factors.values();
      if (a.kept != nullptr && first % a.keep == 0) {
        const std::int64_t slot = (a.slot(p.sequence) + first / a.keep) * HV + head;
        T* const kept = a.kept + (slot * (a.values + extra) + p.column(s)) * Kp;
        for (std::int64_t j = 0; j < width + extra; j += panel<T>)
          transpose(K, within(width + extra - j), S + K * j, panel<T>, kept + j * Kp, Kp);
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
      for (std::int64_t start = 0; start < Vp; start += panel<T>) {
        const std::int64_t columns = Vp - start < panel<T> ? Vp - start : panel<T>;
        T* const S_panel = S + K * start;
        F* const held = factors_at(s) + steps<F>(K) * start;
        tiles<T>(C, columns, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
          tile.add(steps<F>(K), factors.reading + i * (Kp / per<F>), Kp / per<F>, 1, held + j, panel<T>);
          if (!channel) tile.scale(x.read + i);
          tile.add(steps<F>(i + tile.height), factors.weights + i * (C / per<F>), C / per<F>, 1,
                   factors.v + start + j, Vp);
          tile.put(out + i * out_row + start + j, out_row);
        });
        tiles<T>(K, columns, [&](auto tile, std::int64_t c, std::int64_t j) LAVAGNA_LAMBDA {
          ahead.some();
          T* const place = S_panel + c * panel<T> + j;
          tile.take(place, panel<T>);
          tile.scale(x.total + c);
          tile.add(steps<F>(x.tokens), factors.writing + c, 1, Kp, factors.written + start + j, Vp);
          tile.put(place, panel<T>);
          tile.put_across(held, panel<T>, c, j);
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
    for (std::int64_t j = 0; j < p.width(s); j += panel<T>)
      scatter(S + K * j, panel<T>, K, within(p.width(s) - j), T(1),
              a.final_S + at(s) * K * a.values + p.column(s) + j, a.values);
    const std::int64_t last = p.width(s) / panel<T> * panel<T>;
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) a.final_z[at(s) * K + c] = S[K * last + c * panel<T> + p.width(s) - last];
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
