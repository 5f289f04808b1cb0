// The panels of a memory: how it lies in scratch, and what a chunk does to one of them.
#pragma once

#include "gated_delta_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Columns of a memory are independent of each other once a chunk is prepared. A memory lies in scratch in panels of
// so many columns: all that a chunk does to a panel, three passes over it, finds it in L1.
template <class T>
constexpr std::int64_t panel = block_vectors * lanes<T>;

template <class T>
constexpr std::int64_t panels(std::int64_t values) {
  return (values + panel<T> - 1) / panel<T>;
}

// The columns of panel p: how many, and how many in whole vectors.
template <class T>
struct Columns {
  std::int64_t first, count, whole;

  Columns(std::int64_t p, std::int64_t values)
      : first(p * panel<T>),
        count(values - first < panel<T> ? values - first : panel<T>),
        whole(padded<T>(count)) {}
};

template <class T>
void load_memory(const T* from, std::int64_t keys, std::int64_t values, std::int64_t begin, std::int64_t end,
                 T* memory) {
  for (std::int64_t c = 0; c < keys; ++c)
    for (std::int64_t p = begin; p < end; ++p) {
      const Columns<T> columns(p, values);
      fill_row(memory + ((p - begin) * keys + c) * panel<T>, from + c * values + columns.first, columns.count);
    }
}

// The factors of a whole memory, pairs of its rows.
template <class T, class F>
void pack_memory([[maybe_unused]] const T* memory, [[maybe_unused]] std::int64_t keys,
                 [[maybe_unused]] std::int64_t count, [[maybe_unused]] F* factors) {
  for (std::int64_t p = 0; p < count; ++p)
    pack_across(keys, panel<T>, memory + p * keys * panel<T>, factors + p * steps<F>(keys) * panel<T>, panel<T>);
}

template <class T>
void store_memory(const T* memory, std::int64_t keys, std::int64_t values, std::int64_t begin, std::int64_t end,
                  T* to) {
  for (std::int64_t c = 0; c < keys; ++c)
    for (std::int64_t p = begin; p < end; ++p) {
      const Columns<T> columns(p, values);
      put_row(to + c * values + columns.first, memory + ((p - begin) * keys + c) * panel<T>, columns.count);
    }
}

// C rows of a tensor over time, one panel of them; zeros where there are no tokens.
template <class T>
LAVAGNA_INLINE void load_tile(const T* from, std::int64_t from_row, std::int64_t tokens, const Columns<T>& columns,
                              T* tile) {
  for (int i = 0; i < C; ++i) {
    if (i < tokens)
      fill_row(tile + i * panel<T>, from + i * from_row + columns.first, columns.count);
    else
      clear_row(tile + i * panel<T>, columns.whole);
  }
}

// One vector of columns of the errors: (I + kk_beta) E = V − K_in S.
template <class T>
LAVAGNA_INLINE void solve(const T* kk_beta, const T* v, const T* held, T* errors) {
  Vec<T> e[C];
  LAVAGNA_UNROLL
  for (int i = 0; i < C; ++i) {
    e[i] = load(v + i * panel<T>) - load(held + i * panel<T>);
    LAVAGNA_UNROLL
    for (int j = 0; j < C; ++j)
      if (j < i) e[i] -= kk_beta[i * C + j] * e[j];
    store(errors + i * panel<T>, e[i]);
  }
}

// Its adjoint: (I + beta_kk)ᵀ X = dU, from the last row to the first.
template <class T>
LAVAGNA_INLINE void solve_adjoint(const T* beta_kk, T* x) {
  Vec<T> e[C];
  LAVAGNA_UNROLL
  for (int back = 0; back < C; ++back) {
    const int j = C - 1 - back;
    e[j] = load(x + j * panel<T>);
    LAVAGNA_UNROLL
    for (int i = 0; i < C; ++i)
      if (i > j) e[j] -= beta_kk[i * C + j] * e[i];
    store(x + j * panel<T>, e[j]);
  }
}

// U = Diag(β) E.
template <class T>
LAVAGNA_INLINE void write_strength(const T* beta, const T* errors, std::int64_t whole, T* u) {
  for (int i = 0; i < C; ++i)
    for (std::int64_t j = 0; j < whole; j += lanes<T>)
      store(u + i * panel<T> + j, load(errors + i * panel<T> + j) * beta[i]);
}

// S_C = D_C0 S_0 + K_outᵀ U, one panel, and its factors.
template <class T, class F>
LAVAGNA_INLINE void advance(const Chunk<T>& chunk, const F* out_tokens, std::int64_t keys, std::int64_t whole,
                            const F* u, const T* from, T* to, F* factors) {
  const std::int64_t row = padded<T>(keys);
  tiles<T>(keys, whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    tile.take(from + i * panel<T> + j, panel<T>);
    tile.scale(chunk.total + i);
    tile.add(steps<F>(C), out_tokens + i, 1, row, u + j, panel<T>);
    tile.put(to + i * panel<T> + j, panel<T>);
    tile.put_across(factors, panel<T>, i, j);
  });
}

// Factors of a whole memory, or its numbers.
template <class T, class F>
constexpr std::int64_t memory_size(const GatedDelta<T>& a) {
  return panels<T>(a.values) * steps<F>(a.keys) * panel<T>;
}

// Ask for what lies in rows of a tensor over time, too far apart for the processor to guess, before it is needed: a
// share of the rows while each panel of the chunk before is worked on.
template <class T>
struct Ahead {
  std::int64_t token, tokens;  // what is asked for
  std::int64_t part, parts;

  template <bool write = false>
  LAVAGNA_INLINE void ask(const T* from, std::int64_t row, std::int64_t count) const {
    for (std::int64_t i = tokens * part / parts; i < tokens * (part + 1) / parts; ++i)
      for (std::int64_t j = 0; j < count; j += 64 / sizeof(T))
        __builtin_prefetch(from + (token + i) * row + j, write, 2);
  }
};

// Memories that a thread takes through time side by side, chunk by chunk or segment by segment: tokens of several heads
// lie in the same pages, and are read while these are at hand. As many as leave L2 to the rest.
constexpr std::int64_t most_abreast = 16;

template <class T>
constexpr std::int64_t abreast(const GatedDelta<T>& a) {
  const std::int64_t fit = (std::int64_t(256) << 10) / (a.keys * a.values * static_cast<std::int64_t>(sizeof(T)));
  return fit < 1 ? 1 : fit > most_abreast ? most_abreast : fit;
}

// The same for tasks that are key heads with all their value heads.
template <class T>
constexpr std::int64_t tasks_abreast(const GatedDelta<T>& a) {
  const std::int64_t tasks = abreast(a) / (a.heads / a.key_heads);
  return tasks < 1 ? 1 : tasks;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
