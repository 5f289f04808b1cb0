// The gated delta rule token by token: for few tokens, and for a memory that is read and written once a token.
#pragma once

#include "gated_delta_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Vectors of columns whose two sums are in registers during the first pass.
constexpr int column_vectors = LAVAGNA_VECTOR_BYTES == 64 ? 8 : 4;

// What one token brings to one head.
template <class T>
struct Token {
  const T* k;      // [K]
  const T* q;      // [K], times scale
  const T* decay;  // [K], or null where nothing fades
  T qk;            // scale · qᵀk
  T beta;
};

// Columns of one memory [K, V], `values` apart from row to row, through one token:
//
//     a = (Diag(α) S)ᵀ k,   b = (Diag(α) S)ᵀ q,   u = β (v − a),   o = b + (qᵀk) u,   S ← Diag(α) S + k uᵀ
//
// The first pass reads S from wherever it lies and the second finds it in L2. What comes after the block is asked
// for during the second pass, which leaves memory alone.
template <class T, bool whole>
LAVAGNA_INLINE void token_block(const Token<T>& token, std::int64_t keys, std::int64_t values, std::int64_t columns,
                                const T* v, const T* from, T* to, T* o, const T* ahead) {
  constexpr int vectors = whole ? column_vectors : 1;
  const int count = whole ? lanes<T> : static_cast<int>(columns);
  const auto get = [count](const T* x) { return whole ? load(x) : load_part(x, count); };
  const auto put = [count](T* x, Vec<T> y) { whole ? store(x, y) : store_part(x, y, count); };
  Vec<T> by_key[vectors], by_query[vectors];
  LAVAGNA_UNROLL
  for (int j = 0; j < vectors; ++j) by_key[j] = by_query[j] = Vec<T>{};
  for (std::int64_t c = 0; c < keys; ++c) {
    const T decay = token.decay != nullptr ? token.decay[c] : T(1);
    const Vec<T> k = splat(token.k[c] * decay);
    const Vec<T> q = splat(token.q[c] * decay);
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      const Vec<T> s = get(from + c * values + j * lanes<T>);
      by_key[j] += k * s;
      by_query[j] += q * s;
    }
  }
  LAVAGNA_UNROLL
  for (int j = 0; j < vectors; ++j) {
    const Vec<T> u = (get(v + j * lanes<T>) - by_key[j]) * token.beta;
    put(o + j * lanes<T>, by_query[j] + u * token.qk);
    by_key[j] = u;
  }
  for (std::int64_t c = 0; c < keys; ++c) {
    const Vec<T> k = splat(token.k[c]);
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      Vec<T> s = get(from + c * values + j * lanes<T>);
      if (token.decay != nullptr) s *= token.decay[c];
      put(to + c * values + j * lanes<T>, s + k * by_key[j]);
      if (ahead != nullptr && j * lanes<T> % (64 / sizeof(T)) == 0)
        __builtin_prefetch(ahead + c * values + j * lanes<T>, 0, 2);
    }
  }
}

template <class T>
LAVAGNA_INLINE void one_token(const Token<T>& token, std::int64_t keys, std::int64_t values, const T* v, const T* from,
                              T* to, T* o, const T* ahead) {
  constexpr std::int64_t wide = column_vectors * lanes<T>;
  std::int64_t j = 0;
  for (; j + wide <= values; j += wide)
    token_block<T, true>(token, keys, values, wide, v + j, from + j, to + j, o + j, ahead == nullptr ? ahead : ahead + j);
  for (; j < values; j += lanes<T>)
    token_block<T, false>(token, keys, values, values - j < lanes<T> ? values - j : lanes<T>, v + j, from + j, to + j,
                          o + j, nullptr);
}

template <class T>
std::int64_t recurrent_scratch(const GatedDelta<T>& a) {
  return (3 * padded<T>(a.keys) + 15) / 16 * 16;
}

template <class T>
void recurrent_sequence(const GatedDelta<T>& a, std::int64_t m, std::int64_t head, const T* ahead, T* scratch) {
  const std::int64_t length = a.sequences.length(m);
  const std::int64_t first = a.sequences.begin(m);
  const std::int64_t size = a.keys * a.values;
  const std::int64_t row = padded<T>(a.keys);
  const std::int64_t key_head = head / (a.heads / a.key_heads);
  T* k = scratch;
  T* q = scratch + row;
  T* decay = scratch + 2 * row;
  T* to = a.final_state + (m * a.heads + head) * size;
  const T* from = a.state + (m * a.heads + head) * size;
  T* kept = a.kept == nullptr ? nullptr : a.kept + (gated_delta_first_segment(a.sequences, m) * a.heads + head) * size;
  if (length == 0 && to != from) std::memcpy(to, from, size * sizeof(T));
  for (std::int64_t t = 0; t < length; ++t) {
    if (kept != nullptr && t % gated_delta_segment == 0)
      std::memcpy(kept + t / gated_delta_segment * a.heads * size, from, size * sizeof(T));
    fill_row(k, a.k + (first + t) * a.k_row + key_head * a.keys, a.keys);
    fill_row(q, a.q + (first + t) * a.q_row + key_head * a.keys, a.keys);
    Vec<T> kk{}, qq{}, qk{};
    for (std::int64_t c = 0; c < row; c += lanes<T>) {
      kk += load(k + c) * load(k + c);
      qq += load(q + c) * load(q + c);
    }
    T of_k = 1, of_q = a.scale;
    if (a.unit) {
      of_k /= square_root(sum<T>(kk) + T(1e-6));
      of_q /= square_root(sum<T>(qq) + T(1e-6));
    }
    for (std::int64_t c = 0; c < row; c += lanes<T>) {
      store(k + c, load(k + c) * of_k);
      store(q + c, load(q + c) * of_q);
      qk += load(k + c) * load(q + c);
    }
    if (a.fading == Fading::channel) {
      fill_row(decay, a.log_decay + (first + t) * a.log_decay_row + head * a.keys, a.keys);
      for (std::int64_t c = 0; c < row; c += lanes<T>) store(decay + c, exp<T>(load(decay + c)));
    } else if (a.fading == Fading::head) {
      const Vec<T> all = exp<T>(splat(a.log_decay[(first + t) * a.log_decay_row + head]));
      for (std::int64_t c = 0; c < row; c += lanes<T>) store(decay + c, all);
    }
    const Token<T> token{k, q, a.fading == Fading::none ? nullptr : decay, sum<T>(qk),
                         a.beta[(first + t) * a.beta_row + head]};
    one_token(token, a.keys, a.values, a.v + (first + t) * a.v_row + head * a.values, from, to,
              a.o + ((first + t) * a.heads + head) * a.values, t + 1 == length ? ahead : nullptr);
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
