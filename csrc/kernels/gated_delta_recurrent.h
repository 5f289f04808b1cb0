// The gated delta rule token by token: for few tokens, and for a memory that is read and written once a token.
#pragma once

#include "gated_delta_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// What one token brings to one head.
template <class T>
struct Token {
  const T* k;        // [K], as it is written
  const T* k_reads;  // [K], and as the memory of before the token's decay meets it
  const T* q_reads;  // [K], times scale
  const T* decay;    // [K]
  T qk;              // scale · qᵀk
  T beta;
};

// Columns of one memory [K, V], `values` apart from row to row, through one token:
//
//     a = (Diag(α) S)ᵀ k,   b = (Diag(α) S)ᵀ q,   u = β (v − a),   o = b + (qᵀk) u,   S ← Diag(α) S + k uᵀ
//
// The first pass reads S from wherever it lies and the second finds it in L2. What comes after these columns is asked
// for during the second pass, which leaves memory alone.
template <class T, int vectors, bool whole, bool fading>
LAVAGNA_INLINE void token_columns(const Token<T>& token, std::int64_t keys, std::int64_t values, int count, const T* v,
                                  const T* from, T* to, T* o, const T* ahead) {
  const auto get = [count](const T* x) LAVAGNA_LAMBDA { return whole ? load(x) : load_part(x, count); };
  const auto put = [count](T* x, Vec<T> y) LAVAGNA_LAMBDA { whole ? store(x, y) : store_part(x, y, count); };
  Vec<T> by_key[vectors], by_query[vectors], u[vectors];
  LAVAGNA_UNROLL
  for (int j = 0; j < vectors; ++j) by_key[j] = by_query[j] = Vec<T>{};
  for (std::int64_t c = 0; c < keys; ++c) {
    const Vec<T> k = splat(token.k_reads[c]), q = splat(token.q_reads[c]);
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      const Vec<T> s = get(from + c * values + j * lanes<T>);
      by_key[j] += k * s;
      by_query[j] += q * s;
    }
  }
  LAVAGNA_UNROLL
  for (int j = 0; j < vectors; ++j) {
    u[j] = (get(v + j * lanes<T>) - by_key[j]) * token.beta;
    put(o + j * lanes<T>, by_query[j] + u[j] * token.qk);
  }
  for (std::int64_t c = 0; c < keys; ++c) {
    const Vec<T> k = splat(token.k[c]), decay = splat(fading ? token.decay[c] : T(1));
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      const Vec<T> s = get(from + c * values + j * lanes<T>);
      put(to + c * values + j * lanes<T>, (fading ? s * decay : s) + k * u[j]);
      if (ahead != nullptr && j * lanes<T> % (128 / sizeof(T)) == 0)  // the processor takes the line beside it
        __builtin_prefetch(ahead + c * values + j * lanes<T>, 0, 2);
    }
  }
}

template <class T, bool fading>
void one_token(const Token<T>& token, std::int64_t keys, std::int64_t values, const T* v, const T* from, T* to, T* o,
               const T* ahead) {
  constexpr int wide = lanes<T>;
  std::int64_t j = 0;
  const auto cover = [&](auto vectors) LAVAGNA_LAMBDA {
    for (; j + vectors.value * wide <= values; j += vectors.value * wide)
      token_columns<T, vectors.value, true, fading>(token, keys, values, wide, v + j, from + j, to + j, o + j,
                                                    ahead != nullptr ? ahead + j : nullptr);
  };
  if constexpr (LAVAGNA_VECTOR_BYTES == 64) cover(std::integral_constant<int, 8>{});
  cover(std::integral_constant<int, 4>{});
  cover(std::integral_constant<int, 2>{});
  cover(std::integral_constant<int, 1>{});
  if (j < values)
    token_columns<T, 1, false, fading>(token, keys, values, static_cast<int>(values - j), v + j, from + j, to + j,
                                       o + j, nullptr);
}

template <class T>
std::int64_t recurrent_scratch(const GatedDelta<T>& a) {
  Pieces<T> pieces{nullptr};
  for (int i = 0; i < 5; ++i) pieces.take(padded<T>(a.keys));
  return pieces.used;
}

template <class T>
void recurrent_sequence(const GatedDelta<T>& a, std::int64_t m, std::int64_t head, const T* ahead, T* scratch) {
  const std::int64_t length = a.sequences.length(m);
  const std::int64_t first = a.sequences.begin(m);
  const std::int64_t size = a.keys * a.values;
  const std::int64_t row = padded<T>(a.keys);
  const std::int64_t key_head = head / (a.heads / a.key_heads);
  Pieces<T> pieces{scratch};
  T* k = pieces.take(row);
  T* q = pieces.take(row);
  T* k_reads = pieces.take(row);
  T* q_reads = pieces.take(row);
  T* decay = pieces.take(row);
  T* to = a.final_state + (m * a.heads + head) * size;
  const T* from = a.state + (m * a.heads + head) * size;
  T* kept = a.kept == nullptr ? nullptr : a.kept + (gated_delta_first_segment(a.sequences, m) * a.heads + head) * size;
  if (length == 0 && to != from) std::memcpy(to, from, size * sizeof(T));
  for (std::int64_t t = 0; t < length; ++t) {
    if (kept != nullptr && t % gated_delta_segment == 0)
      std::memcpy(kept + t / gated_delta_segment * a.heads * size, from, size * sizeof(T));
    fill_row(k, a.k + (first + t) * a.k_row + key_head * a.keys, a.keys);
    fill_row(q, a.q + (first + t) * a.q_row + key_head * a.keys, a.keys);
    T of_k = 1, of_q = a.scale;
    if (a.unit) {
      Vec<T> kk{}, qq{};
      for (std::int64_t c = 0; c < row; c += lanes<T>) {
        kk += load(k + c) * load(k + c);
        qq += load(q + c) * load(q + c);
      }
      of_k /= square_root(sum<T>(kk) + T(1e-6));
      of_q /= square_root(sum<T>(qq) + T(1e-6));
    }
    Vec<T> qk{};
    for (std::int64_t c = 0; c < row; c += lanes<T>) {
      store(k + c, load(k + c) * of_k);
      store(q + c, load(q + c) * of_q);
      qk += load(k + c) * load(q + c);
    }
    Vec<T> of_head{};
    if (a.fading == Fading::channel)
      fill_row(decay, a.log_decay + (first + t) * a.log_decay_row + head * a.keys, a.keys);
    else if (a.fading == Fading::head)
      of_head = exp<T>(splat(a.log_decay[(first + t) * a.log_decay_row + head]));
    for (std::int64_t c = 0; a.fading != Fading::none && c < row; c += lanes<T>) {
      const Vec<T> faded = a.fading == Fading::channel ? exp<T>(load(decay + c)) : of_head;
      store(decay + c, faded);
      store(k_reads + c, load(k + c) * faded);
      store(q_reads + c, load(q + c) * faded);
    }
    const bool fading = a.fading != Fading::none;
    const Token<T> token{k, fading ? k_reads : k, fading ? q_reads : q, decay, sum<T>(qk),
                         a.beta[(first + t) * a.beta_row + head]};
    const T* v = a.v + (first + t) * a.v_row + head * a.values;
    T* o = a.o + ((first + t) * a.heads + head) * a.values;
    const T* next = t + 1 == length ? ahead : nullptr;
    (fading ? one_token<T, true> : one_token<T, false>)(token, a.keys, a.values, v, from, to, o, next);
    from = to;
  }
}

template <class T>
void recurrent(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedDelta<T>& a = *static_cast<const GatedDelta<T>*>(arguments);
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t m = task / a.heads;
    const std::int64_t head = task % a.heads;
    const T* ahead = task + 1 < end ? a.state + (task + 1) * a.keys * a.values : nullptr;
    recurrent_sequence(a, m, head, ahead, a.scratch + thread * a.scratch_size);
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
