// The recurrent form: each token reads and writes the whole state. It is the form of a step, whose time is that of
// reading and writing the state once.
#pragma once

#include "../core/decay.h"
#include "gated_linear.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Columns [first, first + vectors · lanes) of the state of one value head, or `width` of them if that is less (then
// vectors = 1). S' = decay ∘ S + k vᵀ, o = S'ᵀ q (before: o = (S + (bonus ∘ k) vᵀ)ᵀ q).
template <class T, int vectors, bool before, bool whole>
LAVAGNA_INLINE void step_columns(std::int64_t K, std::int64_t row, int width, const T* S, T* next, const T* q, const T* k,
                                 const T* bonus, const T* v, const T* decay, std::int64_t decay_step, T* o) {
  constexpr int wide = lanes<T>;
  const auto get = [&](const T* from) LAVAGNA_LAMBDA { return whole ? load(from) : load_part(from, width); };
  const auto put = [&](T* to, Vec<T> x) LAVAGNA_LAMBDA {
    if (whole)
      store(to, x);
    else
      store_part(to, x, width);
  };
  Vec<T> value[vectors], read[vectors] = {};
  LAVAGNA_UNROLL
  for (int j = 0; j < vectors; ++j) value[j] = get(v + j * wide);
  for (std::int64_t c = 0; c < K; ++c) {
    const T fade = decay[c * decay_step];
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      const Vec<T> old = get(S + c * row + j * wide);
      const Vec<T> write = k[c] * value[j];
      const Vec<T> now = fade * old + write;
      read[j] += q[c] * (before ? old + bonus[c] * write : now);
      put(next + c * row + j * wide, now);
    }
  }
  LAVAGNA_UNROLL
  for (int j = 0; j < vectors; ++j) put(o + j * wide, read[j]);
}

template <class T, bool before>
void step(std::int64_t K, std::int64_t V, const T* S, T* next, const T* q, const T* k, const T* bonus, const T* v,
          const T* decay, std::int64_t decay_step, T* o) {
  constexpr int wide = lanes<T>;
  std::int64_t j = 0;
  for (; j + 8 * wide <= V; j += 8 * wide)
    step_columns<T, 8, before, true>(K, V, 0, S + j, next + j, q, k, bonus, v + j, decay, decay_step, o + j);
  for (; j + 4 * wide <= V; j += 4 * wide)
    step_columns<T, 4, before, true>(K, V, 0, S + j, next + j, q, k, bonus, v + j, decay, decay_step, o + j);
  for (; j + wide <= V; j += wide)
    step_columns<T, 1, before, true>(K, V, 0, S + j, next + j, q, k, bonus, v + j, decay, decay_step, o + j);
  if (j < V)
    step_columns<T, 1, before, false>(K, V, static_cast<int>(V - j), S + j, next + j, q, k, bonus, v + j, decay,
                                      decay_step, o + j);
}

// All tokens of one value head in one sequence. `memory` holds K scaled queries and K decays.
template <class T, bool before>
void recurrent_head(const GatedLinear<T>& a, std::int64_t sequence, std::int64_t head, T* memory) {
  const std::int64_t K = a.keys, V = a.values, Kp = whole_vectors(K), HV = a.value_heads();
  const std::int64_t begin = a.sequences.begin(sequence), length = a.sequences.length(sequence);
  const std::int64_t at = sequence * HV + head, key_head = head / a.ratio;
  const T* S = a.S + at * K * V;
  const T* z = a.z + at * K;
  T* const final_S = a.final_S + at * K * V;
  T* const final_z = a.final_z + at * K;
  const T* const bonus = before ? a.bonus + head * K : nullptr;
  T* const q = memory;
  T* const decay = memory + Kp;
  const auto exponential = [](T x) { return exp<T>(splat(x))[0]; };
  const std::int64_t decay_step = a.gate == Gate::channel ? 1 : 0;
  decay[0] = a.gate == Gate::constant ? exponential(a.log_decay[head]) : T(1);

  if (length == 0) {
    if (S != final_S)
      for (std::int64_t i = 0; i < K * V; ++i) final_S[i] = S[i];
    if (a.normalizer && z != final_z)
      for (std::int64_t c = 0; c < K; ++c) final_z[c] = z[c];
  }
  for (std::int64_t t = begin; t < begin + length; ++t) {
    const T* const q_t = a.q + t * a.q_row + key_head * K;
    const T* const k_t = a.k + t * a.k_row + key_head * K;
    const T* const v_t = a.v + t * a.v_row + head * V;
    for (std::int64_t c = 0; c < K; ++c) q[c] = a.scale * q_t[c];
    if (a.gate == Gate::scalar) decay[0] = exponential(a.log_decay[t * a.log_decay_row + head]);
    if (a.gate == Gate::channel) {
      const T* const g = a.log_decay + t * a.log_decay_row + head * K;
      decays(K, g, decay);
    }
    if (a.kept != nullptr && (t - begin) % a.keep == 0) {
      T* const kept = a.kept + ((a.slot(sequence) + (t - begin) / a.keep) * HV + head) * (V + a.normalizer) * Kp;
      for (std::int64_t c = 0; c < Kp; ++c) {
        for (std::int64_t j = 0; j < V; ++j) kept[j * Kp + c] = c < K ? S[c * V + j] : T(0);
        if (a.normalizer) kept[V * Kp + c] = c < K ? z[c] : T(0);
      }
    }
    T* const o = a.o + (t * HV + head) * V;
    step<T, before>(K, V, S, final_S, q, k_t, bonus, v_t, decay, decay_step, o);
    S = final_S;
    if (a.normalizer) {
      T weight = 0;
      for (std::int64_t c = 0; c < K; ++c) {
        const T now = decay[c * decay_step] * z[c] + k_t[c];
        weight += q[c] * (before ? z[c] + bonus[c] * k_t[c] : now);
        final_z[c] = now;
      }
      z = final_z;
      weight += a.epsilon;
      if (a.weight != nullptr) a.weight[t * HV + head] = weight;
      for (std::int64_t j = 0; j < V; ++j) o[j] /= weight;
    }
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
