// One chunk on the way back, panel by panel: what is needed of it again, and what goes back through its memory.
#pragma once

#include "gated_delta_panel.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T, class F>
struct BackwardScratch {
  static constexpr int most = gated_delta_segment;  // chunks of a segment, where they have one token

  std::int64_t errors_size;
  Chunk<T> chunks[most];
  T* d_memories;  // of each abreast, panels [K, panel]: dS after the chunk, then before it
  F* d_memory_factors;
  T* d_memory;  // the one at hand
  F* d_factors;
  T* memories;  // S before each chunk of a segment
  F* memory_factors;  // of the one before the chunk at hand
  T* errors;      // E of each chunk of a segment, panels [C, panel]
  T* turned;      // [K, C]
  T* scores;      // [2C, C]
  T* v;           // [C, panel]
  T* y;           // [C, panel]
  T* u;           // [C, panel]
  T* ups;         // [2C, panel], gradients of what is read by keys (−dW) and by queries (dO)
  F* ups_factors;   // pairs of tokens
  F* ups_columns;   // pairs of columns
  F* u_factors;     // pairs of tokens
  F* u_columns;     // pairs of columns
  F* columns_of_memory;    // of one panel, pairs of columns
  F* columns_of_d_memory;  // of one panel, pairs of columns
  F* turned_ups;  // [panel, 2C]
  F* turned_u;    // [panel, C]
  T* d_in;        // [K, 2C], S_0 upsᵀ
  T* d_out;       // [K, C], dS_C Uᵀ
  T* d_scores;    // [2C, C], ups Uᵀ
  T* pairs;       // [C, C], d(D_ij) ∘ D_ij of a head
  T* d_beta;      // [C, lanes], parts of dβ
  T* d_total;     // [K, lanes], parts of Σ_v S_0 ∘ dS_C
  T* d_rows;      // [2C, K]
  T* d_keys;      // [C, K], of keys as they are written
  T* d_faded;     // [3C, K], of channels: of keys that read, queries, keys that are read
  T* d_log;       // [C, K], of channels
  T* log_total;   // [K], of channels
  ChunkFactors<T, F> factors;

  BackwardScratch(Pieces<T>& pieces, const GatedDelta<T>& a) : errors_size(panels<T>(a.values) * C * panel<T>) {
    const std::int64_t row = padded<T>(a.keys);
    const std::int64_t count = gated_delta_segment / a.chunk;
    for (std::int64_t n = 0; n < count; ++n) chunks[n] = Chunk<T>(pieces, a.keys, a.fading);
    const std::int64_t most_memories = tasks_abreast(a) * (a.heads / a.key_heads);
    d_memories = pieces.take(memory_size<T, T>(a) * most_memories);
    d_memory_factors = pieces.template factors<F>(d_memories, per<F> * memory_size<T, F>(a) * most_memories);
    memories = pieces.take(memory_size<T, T>(a) * count);
    memory_factors = pieces.template factors<F>(memories, per<F> * memory_size<T, F>(a));
    columns_of_memory = pieces.template factors<F>(nullptr, a.keys * panel<T>);
    columns_of_d_memory = pieces.template factors<F>(nullptr, a.keys * panel<T>);
    errors = pieces.take(errors_size * count);
    turned = pieces.take(row * C);
    scores = pieces.take(2 * C * C);
    v = pieces.take(C * panel<T>);
    y = pieces.take(C * panel<T>);
    u = pieces.take(C * panel<T>);
    ups = pieces.take(2 * C * panel<T>);
    ups_factors = pieces.template factors<F>(ups, 2 * C * panel<T>);
    ups_columns = pieces.template factors<F>(ups, 2 * C * panel<T>);
    u_factors = pieces.template factors<F>(u, C * panel<T>);
    u_columns = pieces.template factors<F>(u, C * panel<T>);
    turned_ups = reinterpret_cast<F*>(pieces.take(panel<T> / per<F> * 2 * C));
    turned_u = reinterpret_cast<F*>(pieces.take(panel<T> / per<F> * C));
    factors = ChunkFactors<T, F>(pieces, a.keys);
    d_in = pieces.take(a.keys * 2 * C);
    d_out = pieces.take(a.keys * C);
    d_scores = pieces.take(2 * C * C);
    pairs = pieces.take(C * C);
    d_beta = pieces.take(C * lanes<T>);
    d_total = pieces.take(row * lanes<T>);
    d_rows = pieces.take(2 * C * row);
    d_keys = pieces.take(C * row);
    if (a.fading != Fading::channel) return;
    d_faded = pieces.take(3 * C * row);
    d_log = pieces.take(C * row);
    log_total = pieces.take(row);
  }
};

// What one chunk is about.
template <class T>
struct Place {
  std::int64_t head, key_head;
  std::int64_t token;   // the first, among all rows
  std::int64_t tokens;  // of the chunk
  std::int64_t follow;  // of the next one in the segment
  std::int64_t before;  // of the one before
  bool first_of_group;  // the first value head of its key head: sets dq and dk, the others add to them
};

// Errors of a chunk, and the memory behind it where it is asked for.
template <class T, class F>
void repeat_chunk(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, const T* memory, T* errors,
                  T* next, BackwardScratch<T, F>& s) {
  const std::int64_t row = padded<T>(a.keys);
  s.factors.forward(chunk, a.keys);
  for (std::int64_t p = 0; p < panels<T>(a.values); ++p) {
    const Columns<T> columns(p, a.values);
    const T* from = memory + p * a.keys * panel<T>;
    F* before = s.memory_factors + p * steps<F>(a.keys) * panel<T>;
    const F* held = factors_of(from, before);
    T* e = errors + p * C * panel<T>;
    const Ahead<T> next_chunk{place.token + place.tokens, place.follow, p, panels<T>(a.values)};
    next_chunk.ask(a.k + place.key_head * a.keys, a.k_row, a.keys);
    next_chunk.ask(a.q + place.key_head * a.keys, a.q_row, a.keys);
    next_chunk.ask(a.v + place.head * a.values, a.v_row, a.values);
    load_tile(a.v + place.token * a.v_row + place.head * a.values, a.v_row, place.tokens, columns, s.v);
    product<T, Into::set>(C, columns.whole, steps<F>(a.keys), s.factors.in, row / per<F>, 1, held, panel<T>, s.y,
                          panel<T>);
    for (std::int64_t j = 0; j < columns.whole; j += lanes<T>) solve(chunk.kk_beta, s.v + j, s.y + j, e + j);
    if (next == nullptr) continue;
    write_strength(chunk.beta, e, columns.whole, s.u);
    pack_across(C, columns.whole, s.u, s.u_factors, panel<T>);
    advance(chunk, s.factors.out_tokens, a.keys, columns.whole, s.u_factors, from, next + p * a.keys * panel<T>,
            before);
  }
}

// Through one panel: dv, the part of dS_0, and sums over columns for everything else.
template <class T, class F, Into into>
void backward_panel(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, const T* memory,
                    const T* errors, std::int64_t p, BackwardScratch<T, F>& s) {
  const std::int64_t row = padded<T>(a.keys);
  const Columns<T> columns(p, a.values);
  const T* s_0 = memory + p * a.keys * panel<T>;
  const T* e = errors + p * C * panel<T>;
  T* d_s = s.d_memory + p * a.keys * panel<T>;
  F* d_factors = s.d_factors + p * steps<F>(a.keys) * panel<T>;
  T* d_o = s.ups + C * panel<T>;
  F* d_o_factors = s.ups_factors + C / per<F> * panel<T>;
  T* x = s.v;
  const Ahead<T> now{place.token, place.tokens, p, panels<T>(a.values)};
  const Ahead<T> next{place.token - place.before, place.before, p, panels<T>(a.values)};
  now.template ask<true>(a.dk + place.key_head * a.keys, a.key_heads * a.keys, a.keys);
  now.template ask<true>(a.dq + place.key_head * a.keys, a.key_heads * a.keys, a.keys);
  next.ask(a.d_o + place.head * a.values, a.d_o_row, a.values);
  next.template ask<true>(a.dv + place.head * a.values, a.heads * a.values, a.values);
  load_tile(a.d_o + place.token * a.d_o_row + place.head * a.values, a.d_o_row, place.tokens, columns, d_o);
  pack_across(C, columns.whole, d_o, d_o_factors, panel<T>);

  // dU = Pᵀ dO + K_out dS_C; then X = dU through the system, dW = β X is also dv, and dβ = Σ_v X ∘ E.
  tiles<T>(C, columns.whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    const std::int64_t token = i / per<F>;
    tile.add(steps<F>(a.keys), s.factors.out + i * (row / per<F>), row / per<F>, 1, d_factors + j, panel<T>);
    tile.add(steps<F>(C - i), s.factors.qk_tokens + token * C + i, 1, C, d_o_factors + token * panel<T> + j, panel<T>);
    tile.put(x + i * panel<T> + j, panel<T>);
  });
  for (std::int64_t j = 0; j < columns.whole; j += lanes<T>) solve_adjoint(chunk.beta_kk, x + j);
  for (int i = 0; i < C; ++i) {
    Vec<T> d_beta = into == Into::set ? Vec<T>{} : load(s.d_beta + i * lanes<T>);
    for (std::int64_t j = i * panel<T>; j < i * panel<T> + columns.whole; j += lanes<T>) {
      const Vec<T> x_i = load(x + j);
      const Vec<T> e_i = load(e + j);
      d_beta += x_i * e_i;
      store(s.u + j, e_i * chunk.beta[i]);
      store(x + j, x_i * chunk.beta[i]);
      store(s.ups + j, x_i * -chunk.beta[i]);
    }
    store(s.d_beta + i * lanes<T>, d_beta);
    if (i < place.tokens)
      put_row(a.dv + ((place.token + i) * a.heads + place.head) * a.values + columns.first, x + i * panel<T>,
              columns.count);
  }

  if (a.fading != Fading::none)
    for (std::int64_t c = 0; c < a.keys; ++c) {
      Vec<T> sum = into == Into::set ? Vec<T>{} : load(s.d_total + c * lanes<T>);
      for (std::int64_t j = c * panel<T>; j < c * panel<T> + columns.whole; j += lanes<T>)
        sum += load(s_0 + j) * load(d_s + j);
      store(s.d_total + c * lanes<T>, sum);
    }

  // Sums over columns: S_0 upsᵀ and dS_C Uᵀ by channels, ups Uᵀ by tokens.
  constexpr std::int64_t across = panel<T> / per<F>;
  const std::int64_t depth = steps<F>(columns.count);
  pack_across(C, columns.whole, s.ups, s.ups_factors, panel<T>);
  pack_along(2 * C * panel<T>, s.ups, s.ups_columns);
  pack_along(C * panel<T>, s.u, s.u_columns);
  const F* const of_memory = along(a.keys * panel<T>, s_0, s.columns_of_memory);
  const F* const of_d_memory = along<const T>(a.keys * panel<T>, d_s, s.columns_of_d_memory);
  transpose(2 * C, columns.whole / per<F>, s.ups_columns, across, s.turned_ups, 2 * C);
  transpose(C, columns.whole / per<F>, s.u_columns, across, s.turned_u, C);
  product<T, into>(a.keys, 2 * C, depth, of_memory, across, 1, s.turned_ups, 2 * C, s.d_in, 2 * C);
  product<T, into>(a.keys, C, depth, of_d_memory, across, 1, s.turned_u, C, s.d_out, C);
  product<T, into>(2 * C, C, depth, s.ups_columns, across, 1, s.turned_u, C, s.d_scores, C);

  // dS_0 = D_C0 dS_C + Q_inᵀ dO − K_inᵀ dW
  tiles<T>(a.keys, columns.whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    T* d = d_s + i * panel<T> + j;
    tile.take(d, panel<T>);
    tile.scale(chunk.total + i);
    tile.add(steps<F>(2 * C), s.factors.in_tokens + i, 1, row, s.ups_factors + j, panel<T>);
    tile.put(d, panel<T>);
    tile.put_across(d_factors, panel<T>, i, j);
  });
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
