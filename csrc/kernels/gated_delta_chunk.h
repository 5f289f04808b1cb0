// What a chunk of the gated delta rule knows without the memory that enters it. docs/performance/gated_delta.md
// derives it; letters as in src/lavagna/ops/delta/README.md.
#pragma once

#include "../core/decay.h"
#include "../core/pieces.h"
#include "gated_delta.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Rows of a chunk. A shorter one is filled with tokens of q = k = v = β = log_decay = 0, which change nothing.
constexpr int C = gated_delta_chunk;

template <class T>
struct Chunk {
  T* rows;     // [2C, K], the keys, and under them the queries times scale
  T* in;       // [2C, K], the same as the entering memory meets them: faded since the chunk began
  T* out;      // [C, K], keys as the leaving memory keeps them: faded until the chunk ends
  T* total;    // [K], what is left of the entering memory
  T* kk;       // [C, C], k_iᵀ D_ij k_j for j < i, 0 elsewhere
  T* qk;       // [C, C], scale · q_iᵀ D_ij k_j for j ≤ i, 0 elsewhere
  T* kk_beta;  // kk_ij β_j, of the system for the errors
  T* beta_kk;  // β_i kk_ij, of the adjoint system
  T* beta;     // [C]
  T* norm;     // [2C], 1 / sqrt(Σx² + 1e-6)
  T* between;  // [C, C], D_ij of a head
  T* since;    // [C], D_i0 of a head
  T* until;    // [C], D_Cj of a head
  T* decay;    // [C, K], e^log_decay of channels

  Chunk() = default;
  Chunk(Pieces<T>& pieces, std::int64_t keys, Fading fading)
      : rows(pieces.take(2 * C * padded<T>(keys))),
        in(fading == Fading::none ? rows : pieces.take(2 * C * padded<T>(keys))),
        out(fading == Fading::none ? rows : pieces.take(C * padded<T>(keys))),
        total(pieces.take(padded<T>(keys))),
        kk(pieces.take(C * C)),
        qk(pieces.take(C * C)),
        kk_beta(pieces.take(C * C)),
        beta_kk(pieces.take(C * C)),
        beta(pieces.take(C)),
        norm(pieces.take(2 * C)),
        between(pieces.take(C * C)),
        since(pieces.take(C)),
        until(pieces.take(C)),
        decay(fading == Fading::channel ? pieces.take(C * padded<T>(keys)) : nullptr) {}
};

// What the products with a memory take of a chunk. Pairs of neighbouring keys, which meet rows of the memory, and pairs
// of tokens, which meet what tokens write.
template <class T, class F>
struct ChunkFactors {
  F* in;          // [2C, K], pairs of keys
  F* out;         // [C, K]
  F* in_tokens;   // [2C, K], pairs of tokens
  F* out_tokens;  // [C, K]
  F* qk;          // [C, C], pairs along its rows
  F* qk_tokens;   // [C, C], pairs of them

  ChunkFactors() = default;
  ChunkFactors(Pieces<T>& pieces, std::int64_t keys)
      : in(pieces.template factors<F>(nullptr, 2 * C * padded<T>(keys))),
        out(pieces.template factors<F>(nullptr, C * padded<T>(keys))),
        in_tokens(pieces.template factors<F>(nullptr, 2 * C * padded<T>(keys))),
        out_tokens(pieces.template factors<F>(nullptr, C * padded<T>(keys))),
        qk(pieces.template factors<F>(nullptr, C * C)),
        qk_tokens(pieces.template factors<F>(nullptr, C * C)) {}

  // Forward it takes one of each two.
  void forward(const Chunk<T>& chunk, std::int64_t keys) {
    const std::int64_t row = padded<T>(keys);
    in = factors_of(chunk.in, in);
    out_tokens = factors_of(chunk.out, out_tokens);
    qk = factors_of(chunk.qk, qk);
    pack_along(2 * C * row, chunk.in, in);
    pack_across(C, row, chunk.out, out_tokens, row);
    pack_along(C * C, chunk.qk, qk);
  }

  void backward(const Chunk<T>& chunk, std::int64_t keys) {
    const std::int64_t row = padded<T>(keys);
    out = factors_of(chunk.out, out);
    in_tokens = factors_of(chunk.in, in_tokens);
    qk_tokens = factors_of(chunk.qk, qk_tokens);
    pack_along(C * row, chunk.out, out);
    pack_across(2 * C, row, chunk.in, in_tokens, row);
    pack_across(C, C, chunk.qk, qk_tokens, C);
  }
};

// A chunk is one sub-block of core/decay.h, so that what is faded since its own start or the chunk's is the same.
// `turned` is scratch for [K, C] numbers, `scores` for [2C, C].
static_assert(C == sub_block);
template <class T>
ChannelDecay<T, 2> channels_of(const Chunk<T>& chunk, std::int64_t row, T* turned, T* scores) {
  ChannelDecay<T, 2> x{};
  x.tokens = C;
  x.channels = row;
  x.row = C;
  x.log_decay = x.decay = chunk.decay;
  x.rows[0] = x.column = chunk.rows;
  x.rows[1] = chunk.rows + C * row;
  x.since[0] = x.reading[0] = chunk.in;
  x.since[1] = x.reading[1] = chunk.in + C * row;
  x.until = x.writing = chunk.out;
  x.blocks = x.total = chunk.total;
  x.scores[0] = scores;
  x.scores[1] = scores + C * C;
  x.turned = turned;
  return x;
}

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

// Which of the columns beginning at `first` lie before column i.
template <class T>
LAVAGNA_INLINE typename Number<T>::I before_column(int first, int i) {
  return lane_numbers<T>() < static_cast<typename Number<T>::Int>(i - first);
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

// One decay a head: D_ij, D_i0, D_Cj and the rows that they fade.
template <class T>
void fade_by_head(const GatedDelta<T>& a, const T* log_decay, std::int64_t tokens, const Chunk<T>& chunk) {
  const std::int64_t row = padded<T>(a.keys);
  T each[C];
  for (int i = 0; i < C; ++i) each[i] = i < tokens ? log_decay[i * a.log_decay_row] : T(0);
  const T total = segments<T, false>(C, each, chunk.between, C, chunk.since, chunk.until);
  for (int i = 0; i < C; ++i)
    for (std::int64_t c = i * row; c < (i + 1) * row; c += lanes<T>) {
      const Vec<T> k = load(chunk.rows + c);
      store(chunk.in + c, k * chunk.since[i]);
      store(chunk.in + C * row + c, load(chunk.rows + C * row + c) * chunk.since[i]);
      store(chunk.out + c, k * chunk.until[i]);
    }
  for (std::int64_t c = 0; c < row; c += lanes<T>) store(chunk.total + c, splat(total));
}

// All of a chunk. `turned` is scratch for [K, C] numbers, `scores` for [2C, C].
template <class T>
void prepare(const GatedDelta<T>& a, std::int64_t head, std::int64_t token, std::int64_t tokens,
             const Chunk<T>& chunk, T* turned, T* scores) {
  const std::int64_t row = padded<T>(a.keys);
  const std::int64_t key_head = head / (a.heads / a.key_heads);
  load_rows(a.k + token * a.k_row + key_head * a.keys, a.k_row, tokens, a.keys, a.unit, T(1), chunk.rows, chunk.norm);
  load_rows(a.q + token * a.q_row + key_head * a.keys, a.q_row, tokens, a.keys, a.unit, a.scale, chunk.rows + C * row,
            chunk.norm + C);
  for (int i = 0; i < C; ++i) chunk.beta[i] = i < tokens ? a.beta[(token + i) * a.beta_row + head] : T(0);

  if (a.fading == Fading::channel) {
    for (int i = 0; i < C; ++i) {
      if (i < tokens)
        fill_row(chunk.decay + i * row, a.log_decay + (token + i) * a.log_decay_row + head * a.keys, a.keys);
      else
        clear_row(chunk.decay + i * row, row);
    }
    absorb<T, false, 2>(channels_of(chunk, row, turned, scores));
  } else {
    transpose(C, a.keys, chunk.rows, row, turned, C);
    product<T, Into::set>(2 * C, C, a.keys, chunk.rows, row, 1, turned, C, scores, C);
    if (a.fading == Fading::head)
      fade_by_head(a, a.log_decay + token * a.log_decay_row + head, tokens, chunk);
    else
      for (std::int64_t c = 0; c < row; c += lanes<T>) store(chunk.total + c, splat(T(1)));
  }

  for (int j = 0; j < C; j += lanes<T>) {
    const Vec<T> beta = load(chunk.beta + j);
    for (int i = 0; i < C; ++i) {
      const Vec<T> between = a.fading == Fading::head ? load(chunk.between + i * C + j) : splat(T(1));
      const Vec<T> kk = before_column<T>(j, i) ? load(scores + i * C + j) * between : Vec<T>{};
      const Vec<T> qk = before_column<T>(j, i + 1) ? load(scores + (C + i) * C + j) * between : Vec<T>{};
      store(chunk.kk + i * C + j, kk);
      store(chunk.qk + i * C + j, qk);
      store(chunk.kk_beta + i * C + j, kk * beta);
      store(chunk.beta_kk + i * C + j, kk * chunk.beta[i]);
    }
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
