// The gated delta rule in chunks, forward.
#pragma once

#include "gated_delta_panel.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T, class F>
struct ForwardScratch {
  T* memories;  // of each abreast, panels [K, panel]
  F* memory_factors;
  T* turned;  // [K, C]
  T* scores;  // [2C, C]
  T* v;       // [C, panel]
  T* y;       // [C, panel]
  T* errors;  // [C, panel]
  T* u;       // [C, panel]
  F* u_factors;
  Chunk<T> chunk;
  ChunkFactors<T, F> factors;

  ForwardScratch(Pieces<T>& pieces, const GatedDelta<T>& a)
      : memories(pieces.take(abreast(a) * memory_size<T, T>(a))),
        memory_factors(pieces.template factors<F>(memories, per<F> * abreast(a) * memory_size<T, F>(a))),
        turned(pieces.take(padded<T>(a.keys) * C)),
        scores(pieces.take(2 * C * C)),
        v(pieces.take(C * panel<T>)),
        y(pieces.take(C * panel<T>)),
        errors(pieces.take(C * panel<T>)),
        u(pieces.take(C * panel<T>)),
        u_factors(pieces.template factors<F>(u, C * panel<T>)),
        chunk(pieces, a.keys, a.fading),
        factors(pieces, a.keys) {}
};

// The columns [begin, end), in panels, of one memory on its way through one sequence.
template <class T, class F>
struct Way {
  std::int64_t head, key_head;
  std::int64_t begin, end;
  std::int64_t first, length;  // of the sequence's tokens
  std::int64_t at;             // where its states begin
  T* kept;
  T* memory;
  F* factors;

  Way() = default;
  Way(const GatedDelta<T>& a, std::int64_t task, T* its_memory, F* its_factors)
      : memory(its_memory), factors(its_factors) {
    const std::int64_t m = task % a.sequences.count;
    const std::int64_t block = task / a.sequences.count % a.blocks;
    head = task / a.sequences.count / a.blocks;
    key_head = head / (a.heads / a.key_heads);
    begin = panels<T>(a.values) * block / a.blocks;
    end = panels<T>(a.values) * (block + 1) / a.blocks;
    first = a.sequences.begin(m);
    length = a.sequences.length(m);
    at = (m * a.heads + head) * a.keys * a.values;
    kept = a.kept == nullptr
               ? nullptr
               : a.kept + (gated_delta_first_segment(a.sequences, m) * a.heads + head) * a.keys * a.values;
  }
};

template <class T, class F>
void forward_chunk(const GatedDelta<T>& a, const Way<T, F>& way, std::int64_t t, ForwardScratch<T, F>& s) {
  const std::int64_t row = padded<T>(a.keys);
  const std::int64_t left = way.length - t;
  const std::int64_t token = way.first + t, tokens = left < a.chunk ? left : a.chunk;
  const std::int64_t next = left - tokens < a.chunk ? left - tokens : a.chunk;
  const Chunk<T>& chunk = s.chunk;
  prepare(a, way.head, token, tokens, chunk, s.turned, s.scores);
  s.factors.forward(chunk, a.keys);
  const ChunkFactors<T, F>& factors = s.factors;
  const std::int64_t in_row = row / per<F>;
  for (std::int64_t p = way.begin; p < way.end; ++p) {
    const Columns<T> columns(p, a.values);
    T* memory = way.memory + (p - way.begin) * a.keys * panel<T>;
    F* held = way.factors + (p - way.begin) * steps<F>(a.keys) * panel<T>;
    const Ahead<T> ahead{token + tokens, next, p - way.begin, way.end - way.begin};
    ahead.ask(a.k + way.key_head * a.keys, a.k_row, a.keys);
    ahead.ask(a.q + way.key_head * a.keys, a.q_row, a.keys);
    ahead.ask(a.v + way.head * a.values, a.v_row, a.values);
    ahead.template ask<true>(a.o + way.head * a.values, a.heads * a.values, a.values);
    load_tile(a.v + token * a.v_row + way.head * a.values, a.v_row, tokens, columns, s.v);
    product<T, Into::set>(C, columns.whole, steps<F>(a.keys), factors.in, in_row, 1, held, panel<T>, s.y, panel<T>);
    for (std::int64_t j = 0; j < columns.whole; j += lanes<T>) solve(chunk.kk_beta, s.v + j, s.y + j, s.errors + j);
    write_strength(chunk.beta, s.errors, columns.whole, s.u);
    pack_across(C, columns.whole, s.u, s.u_factors, panel<T>);
    // O = Q_in S + P U, P lower triangular.
    tiles<T>(C, columns.whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
      tile.add(steps<F>(a.keys), factors.in + (C + i) * in_row, in_row, 1, held + j, panel<T>);
      tile.add(steps<F>(i + block_rows), factors.qk + i * (C / per<F>), C / per<F>, 1, s.u_factors + j, panel<T>);
      tile.put(s.y + i * panel<T> + j, panel<T>);
    });
    for (int i = 0; i < tokens; ++i)
      put_row(a.o + ((token + i) * a.heads + way.head) * a.values + columns.first, s.y + i * panel<T>, columns.count);
    advance(chunk, factors.out_tokens, a.keys, columns.whole, s.u_factors, memory, memory, held);
  }
}

template <class T, class F>
void forward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedDelta<T>& a = *static_cast<const GatedDelta<T>*>(arguments);
  Pieces<T> pieces{a.scratch + thread * a.scratch_size};
  ForwardScratch<T, F> s(pieces, a);
  const std::int64_t most = abreast(a);
  Way<T, F> ways[most_abreast];
  for (std::int64_t task = begin; task < end; task += most) {
    const std::int64_t count = end - task < most ? end - task : most;
    std::int64_t longest = 0;
    for (std::int64_t n = 0; n < count; ++n) {
      Way<T, F>& way = ways[n] =
          Way<T, F>(a, task + n, s.memories + n * memory_size<T, T>(a), s.memory_factors + n * memory_size<T, F>(a));
      load_memory(a.state + way.at, a.keys, a.values, way.begin, way.end, way.memory);
      pack_memory(way.memory, a.keys, way.end - way.begin, way.factors);
      longest = way.length > longest ? way.length : longest;
    }
    for (std::int64_t t = 0; t < longest; t += a.chunk)
      for (std::int64_t n = 0; n < count; ++n) {
        const Way<T, F>& way = ways[n];
        if (t >= way.length) continue;
        if (way.kept != nullptr && t % gated_delta_segment == 0)
          store_memory(way.memory, a.keys, a.values, way.begin, way.end,
                       way.kept + t / gated_delta_segment * a.heads * a.keys * a.values);
        forward_chunk(a, way, t, s);
      }
    for (std::int64_t n = 0; n < count; ++n)
      store_memory(ways[n].memory, a.keys, a.values, ways[n].begin, ways[n].end, a.final_state + ways[n].at);
  }
}

template <class T, class F>
std::int64_t forward_scratch(const GatedDelta<T>& a) {
  Pieces<T> pieces{nullptr};
  ForwardScratch<T, F>(pieces, a);
  return pieces.used;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
