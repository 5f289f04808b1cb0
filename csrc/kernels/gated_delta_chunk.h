// What a chunk of the gated delta rule knows without the memory that enters it. docs/performance/gated_delta.md
// derives it; letters as in src/lavagna/ops/delta/README.md.
#pragma once

#include "../core/product.h"
#include "gated_delta.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Rows of a chunk. A shorter one is filled with tokens of q = k = v = β = log_decay = 0, which change nothing.
constexpr int C = gated_delta_chunk;

// Pieces of a thread's scratch, one behind the other; without memory it only counts.
template <class T>
struct Pieces {
  T* memory;
  std::int64_t used = 0;

  T* take(std::int64_t numbers) {
    T* piece = memory != nullptr ? memory + used : nullptr;
    used += (numbers + 15) / 16 * 16;
    return piece;
  }
};

template <class T>
struct Chunk {
  T* rows;       // [2C, K], the keys, and under them the queries times scale
  T* in;         // [2C, K], the same as the entering memory meets them: faded since the chunk began
  T* out;        // [C, K], keys as the leaving memory keeps them: faded until the chunk ends
  T* total;      // [K], what is left of the entering memory
  T* kk;         // [C, C], k_iᵀ D_ij k_j for j < i, 0 elsewhere
  T* qk;         // [C, C], scale · q_iᵀ D_ij k_j for j ≤ i, 0 elsewhere
  T* kk_beta;    // kk_ij β_j, of the system for the errors
  T* beta_kk;    // β_i kk_ij, of the adjoint system
  T* beta;       // [C]
  T* norm;       // [2C], 1 / sqrt(Σx² + 1e-6)
  T* decay;      // D_ij [C, C] of a head; e^log_decay [C, K] of channels
  T* since;      // D_i0, [C] of a head, [C, K] of channels
  T* until;      // D_Cj, the same

  Chunk() = default;
  Chunk(Pieces<T>& pieces, std::int64_t keys)
      : rows(pieces.take(2 * C * padded<T>(keys))),
        in(pieces.take(2 * C * padded<T>(keys))),
        out(pieces.take(C * padded<T>(keys))),
        total(pieces.take(padded<T>(keys))),
        kk(pieces.take(C * C)),
        qk(pieces.take(C * C)),
        kk_beta(pieces.take(C * C)),
        beta_kk(pieces.take(C * C)),
        beta(pieces.take(C)),
        norm(pieces.take(2 * C)),
        decay(pieces.take(C * (padded<T>(keys) > C ? padded<T>(keys) : C))),
        since(pieces.take(C * padded<T>(keys))),
        until(pieces.take(C * padded<T>(keys))) {}
};

// `count` numbers into a row of whole vectors, zeros behind them.
template <class T>
LAVAGNA_INLINE void fill_row(T* row, const T* from, std::int64_t count) {
  std::int64_t j = 0;
  for (; j + lanes<T> <= count; j += lanes<T>) store(row + j, load(from + j));
  if (j < count) store(row + j, load_part(from + j, static_cast<int>(count - j)));
}

template <class T>
LAVAGNA_INLINE void clear_row(T* row, std::int64_t count) {
  for (std::int64_t j = 0; j < count; j += lanes<T>) store(row + j, Vec<T>{});
}

template <class T>
LAVAGNA_INLINE void put_row(T* to, const T* row, std::int64_t count) {
  std::int64_t j = 0;
  for (; j + lanes<T> <= count; j += lanes<T>) store(to + j, load(row + j));
  if (j < count) store_part(to + j, load(row + j), static_cast<int>(count - j));
}

// 0, 1, 2, ... plus `first`.
template <class T>
LAVAGNA_INLINE Vec<T> counting(int first) {
  Vec<T> v{};
  LAVAGNA_UNROLL
  for (int i = 0; i < lanes<T>; ++i) v[i] = T(first + i);
  return v;
}

// Σ_j a_ij b_ij for C rows.
template <class T>
LAVAGNA_INLINE void row_products(const T* a, const T* b, std::int64_t row, std::int64_t count, T* totals) {
  for (int i0 = 0; i0 < C; i0 += lanes<T>) {
    Vec<T> each[lanes<T>];
    LAVAGNA_UNROLL
    for (int i = 0; i < lanes<T>; ++i) each[i] = Vec<T>{};
    for (std::int64_t j = 0; j < count; j += lanes<T>)
      LAVAGNA_UNROLL
      for (int i = 0; i < lanes<T>; ++i) each[i] += load(a + (i0 + i) * row + j) * load(b + (i0 + i) * row + j);
    store(totals + i0, sums<T>(each));
  }
}

template <class T>
LAVAGNA_INLINE T square_root(T x) {
  return sizeof(T) == 8 ? T(__builtin_sqrt(x)) : T(__builtin_sqrtf(static_cast<float>(x)));
}

// Rows of q or k, normalised and scaled.
template <class T>
void load_rows(const T* from, std::int64_t from_row, std::int64_t tokens, std::int64_t keys, bool unit, T scale,
               T* rows, T* norm) {
  const std::int64_t row = padded<T>(keys);
  for (int i = 0; i < C; ++i) {
    if (i < tokens)
      fill_row(rows + i * row, from + i * from_row, keys);
    else
      clear_row(rows + i * row, row);
  }
  T factor[C];
  for (int i = 0; i < C; ++i) factor[i] = scale;
  if (unit) {
    row_products(rows, rows, row, row, norm);
    for (int i = 0; i < C; ++i) {
      norm[i] = T(1) / square_root(norm[i] + T(1e-6));
      factor[i] *= norm[i];
    }
  } else if (scale == T(1)) {
    return;
  }
  for (int i = 0; i < C; ++i)
    for (std::int64_t j = 0; j < row; j += lanes<T>) store(rows + i * row + j, load(rows + i * row + j) * factor[i]);
}

// One decay a head: D_ij, D_i0, D_Cj, each e^(sum of the range's own terms), and the rows that they fade.
template <class T>
void fade_by_head(const GatedDelta<T>& a, const T* log_decay, std::int64_t tokens, Chunk<T>& chunk) {
  const std::int64_t row = padded<T>(a.keys);
  T steps[C];  // in powers of two
  for (int i = 0; i < C; ++i) steps[i] = i < tokens ? log_decay[i * a.log_decay_row] * log2_e<T> : T(0);
  T sum = 0;
  for (int i = 0; i < C; ++i) chunk.since[i] = sum += steps[i];
  sum = 0;
  for (int j = C - 1; j >= 0; --j) {
    chunk.until[j] = sum;
    sum += steps[j];
  }
  for (int j = 0; j < C; j += lanes<T>) {
    store(chunk.since + j, exp2(load(chunk.since + j)));
    store(chunk.until + j, exp2(load(chunk.until + j)));
    const Vec<T> column = counting<T>(j);
    Vec<T> sums{};
    for (int i = 0; i < C; ++i) {
      sums = column < T(i) ? sums + steps[i] : Vec<T>{};
      store(chunk.decay + i * C + j, exp2(sums));
    }
  }
  for (int i = 0; i < C; ++i)
    for (std::int64_t c = 0; c < row; c += lanes<T>) {
      const Vec<T> k = load(chunk.rows + i * row + c);
      store(chunk.in + i * row + c, k * chunk.since[i]);
      store(chunk.in + (C + i) * row + c, load(chunk.rows + (C + i) * row + c) * chunk.since[i]);
      store(chunk.out + i * row + c, k * chunk.until[i]);
    }
  for (std::int64_t c = 0; c < row; c += lanes<T>) store(chunk.total + c, splat(chunk.since[C - 1]));
}

// One decay a key channel; those over ranges are products of the range's own.
template <class T>
void fade_by_channel(const GatedDelta<T>& a, const T* log_decay, std::int64_t tokens, Chunk<T>& chunk) {
  const std::int64_t row = padded<T>(a.keys);
  for (int i = 0; i < C; ++i) {
    if (i < tokens)
      fill_row(chunk.decay + i * row, log_decay + i * a.log_decay_row, a.keys);
    else
      clear_row(chunk.decay + i * row, row);
  }
  for (std::int64_t c = 0; c < row; c += lanes<T>) {
    Vec<T> since = splat(T(1));
    for (int i = 0; i < C; ++i) {
      const Vec<T> decay = exp<T>(load(chunk.decay + i * row + c));
      since *= decay;
      store(chunk.decay + i * row + c, decay);
      store(chunk.since + i * row + c, since);
      store(chunk.in + i * row + c, load(chunk.rows + i * row + c) * since);
      store(chunk.in + (C + i) * row + c, load(chunk.rows + (C + i) * row + c) * since);
    }
    store(chunk.total + c, since);
    Vec<T> until = splat(T(1));
    for (int j = C - 1; j >= 0; --j) {
      store(chunk.until + j * row + c, until);
      store(chunk.out + j * row + c, load(chunk.rows + j * row + c) * until);
      until *= load(chunk.decay + j * row + c);
    }
  }
}

// Rows i of k_iᵀ D_ij k_j and q_iᵀ D_ij k_j for first ≤ i < first + C/2 with D of channels, keys in the lanes: channel
// by channel, `faded` [K, C] holds D_ij k_j of the row before, and a row fades the lanes before it once more.
template <class T, int first>
void channel_scores(std::int64_t keys, std::int64_t row, const T* rows, const T* decay, T* faded, T* scores) {
  constexpr int half = C / 2;
  LAVAGNA_UNROLL
  for (int j = 0; j < C; j += lanes<T>) {
    const Vec<T> column = counting<T>(j);
    Vec<T> kk[half], qk[half];
    LAVAGNA_UNROLL
    for (int i = 0; i < half; ++i) kk[i] = qk[i] = Vec<T>{};
    for (std::int64_t c = 0; c < keys; ++c) {
      Vec<T> k = load(faded + c * C + j);
      LAVAGNA_UNROLL
      for (int i = 0; i < half; ++i) {
        k = column < T(first + i) ? k * decay[(first + i) * row + c] : k;
        kk[i] += rows[(first + i) * row + c] * k;
        qk[i] += rows[(C + first + i) * row + c] * k;
      }
      store(faded + c * C + j, k);
    }
    LAVAGNA_UNROLL
    for (int i = 0; i < half; ++i) {
      store(scores + (first + i) * C + j, kk[i]);
      store(scores + (C + first + i) * C + j, qk[i]);
    }
  }
}

// All of a chunk. `turned` is scratch for [K, C] numbers, `scores` for [2C, C].
template <class T>
void prepare(const GatedDelta<T>& a, std::int64_t head, std::int64_t token, std::int64_t tokens, Chunk<T>& chunk,
             T* turned, T* scores) {
  const std::int64_t row = padded<T>(a.keys);
  const std::int64_t key_head = head / (a.heads / a.key_heads);
  load_rows(a.k + token * a.k_row + key_head * a.keys, a.k_row, tokens, a.keys, a.unit, T(1), chunk.rows, chunk.norm);
  load_rows(a.q + token * a.q_row + key_head * a.keys, a.q_row, tokens, a.keys, a.unit, a.scale, chunk.rows + C * row,
            chunk.norm + C);
  for (int i = 0; i < C; ++i) chunk.beta[i] = i < tokens ? a.beta[(token + i) * a.beta_row + head] : T(0);

  transpose(C, a.keys, chunk.rows, row, turned, C);
  if (a.fading == Fading::channel) {
    fade_by_channel(a, a.log_decay + token * a.log_decay_row + head * a.keys, tokens, chunk);
    channel_scores<T, 0>(a.keys, row, chunk.rows, chunk.decay, turned, scores);
    channel_scores<T, C / 2>(a.keys, row, chunk.rows, chunk.decay, turned, scores);
  } else {
    product<T, Into::set>(2 * C, C, a.keys, chunk.rows, row, 1, turned, C, scores, C);
    if (a.fading == Fading::head) {
      fade_by_head(a, a.log_decay + token * a.log_decay_row + head, tokens, chunk);
    } else {
      chunk.in = chunk.rows;
      chunk.out = chunk.rows;
      for (std::int64_t c = 0; c < row; c += lanes<T>) store(chunk.total + c, splat(T(1)));
    }
  }

  for (int j = 0; j < C; j += lanes<T>) {
    const Vec<T> column = counting<T>(j);
    const Vec<T> beta = load(chunk.beta + j);
    for (int i = 0; i < C; ++i) {
      const Vec<T> decay = a.fading == Fading::head ? load(chunk.decay + i * C + j) : splat(T(1));
      const Vec<T> kk = column < T(i) ? load(scores + i * C + j) * decay : Vec<T>{};
      const Vec<T> qk = column <= T(i) ? load(scores + (C + i) * C + j) * decay : Vec<T>{};
      store(chunk.kk + i * C + j, kk);
      store(chunk.qk + i * C + j, qk);
      store(chunk.kk_beta + i * C + j, kk * beta);
      store(chunk.beta_kk + i * C + j, kk * chunk.beta[i]);
    }
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
