#pragma once

#include "../core/parallel.h"
#include "../core/sequences.h"
#include "../core/table.h"

namespace lavagna {

// How the memory fades: not at all, by one factor for each head, by one for each key channel of each head.
enum class Fading { none, head, channel };

// S ← Diag(α_t) S,  S ← S + β_t k_t (v_t − Sᵀ k_t)ᵀ,  o_t = scale · Sᵀ q_t, each sequence and value head for itself.
//
// Tokens of the tensors over time are ..._row numbers apart; everything else is contiguous. Value head h has the key
// head h / (heads / key_heads).
template <class T>
struct GatedDelta {
  Sequences sequences;
  std::int64_t key_heads;
  std::int64_t heads;
  std::int64_t keys;
  std::int64_t values;
  std::int64_t chunk;   // tokens a chunk, from 1 to gated_delta_chunk
  std::int64_t blocks;  // tasks that share the columns of one memory (forward)
  Fading fading;
  bool unit;  // q and k are divided by sqrt(Σx² + 1e-6)
  T scale;

  const T* q;  // [rows, H, K]
  std::int64_t q_row;
  const T* k;  // [rows, H, K]
  std::int64_t k_row;
  const T* v;  // [rows, HV, V]
  std::int64_t v_row;
  const T* beta;  // [rows, HV]
  std::int64_t beta_row;
  const T* log_decay;  // [rows, HV] or [rows, HV, K]
  std::int64_t log_decay_row;
  const T* state;  // [M, HV, K, V]
  T* o;            // [rows, HV, V]
  T* final_state;  // [M, HV, K, V]; may be the state itself where each sequence has one token
  T* kept;         // [segments, HV, K, V], the memory before each segment, or null; see below

  // backward
  const T* d_o;  // [rows, HV, V]
  std::int64_t d_o_row;
  const T* d_final_state;
  T* dq;
  T* dk;
  T* dv;
  T* d_beta;
  T* d_log_decay;
  T* d_state;

  T* scratch;  // scratch numbers for each thread
  std::int64_t scratch_size;
};

// Tokens of a chunk, and between two memories that are kept for the backward pass.
constexpr std::int64_t gated_delta_chunk = 16;
constexpr std::int64_t gated_delta_segment = 64;

// Which of the kept memories is the first of sequence m. A sequence keeps one for each segment that it begins, so
// that all are below ⌊rows / segment⌋ + M.
[[maybe_unused]] static std::int64_t gated_delta_first_segment(const Sequences& sequences, std::int64_t m) {
  return sequences.begin(m) / gated_delta_segment + m;
}

// A kernel and how many numbers of scratch a thread needs for a call.
template <class T>
struct GatedDeltaKernel {
  Body run;
  std::int64_t (*scratch)(const GatedDelta<T>& call);
};

template <class T>
struct GatedDeltaForms {
  GatedDeltaKernel<T> chunk;      // a task is a value head, a block of its columns, a sequence
  GatedDeltaKernel<T> recurrent;  // a task is a value head, a sequence
  GatedDeltaKernel<T> backward;   // a task is a key head with its value heads, a sequence
};

struct GatedDeltaKernels {
  GatedDeltaForms<float> float32;
  GatedDeltaForms<double> float64;
  GatedDeltaForms<float> mixed;  // of float32, with products of bfloat16; null in sets without them
};

}  // namespace lavagna

LAVAGNA_KERNELS(GatedDeltaKernels, gated_delta)
