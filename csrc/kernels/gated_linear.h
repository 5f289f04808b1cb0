#pragma once

#include "../core/parallel.h"
#include "../core/sequences.h"
#include "../core/table.h"

namespace lavagna {

// Row lengths inside kernels: of whole vectors, whatever the instruction set.
constexpr std::int64_t whole_vectors(std::int64_t n) { return (n + 15) / 16 * 16; }

// What fades the state: nothing, a number per value head, one per token too, one per key channel too.
enum class Gate { none, constant, scalar, channel };

// S_t = Diag(e^{log_decay_t}) S_{t−1} + k_t v_tᵀ, o_t = scale · S_tᵀ q_t
//
// R value heads read and write with one key head; HV = H · R. Rows of q, k, v, log_decay and d_o are *_row numbers
// apart, everything else is contiguous. `tokens` below counts those of all sequences, M is the number of sequences.
//
// The work of one key head in one sequence is cut into `parts`: its R value heads, each in strips of `strip` columns
// of V, are shared among them in contiguous ranges.
template <class T>
struct GatedLinear {
  Sequences sequences;
  std::int64_t tokens;
  std::int64_t heads;   // H
  std::int64_t ratio;   // R
  std::int64_t keys;    // K
  std::int64_t values;  // V
  Gate gate;
  bool normalizer;  // the output is divided by scale · q_tᵀ z_t + epsilon, z the sum of k under the same decay
  T scale;
  T epsilon;
  std::int64_t chunk;   // tokens, a multiple of 16; those of the backward pass are what lies between kept states
  std::int64_t keep;    // tokens between the states that are kept, a multiple of chunk
  std::int64_t parts;
  std::int64_t strip;   // columns of a strip, the last of a value head may have fewer

  const T* q;  // [tokens, H, K]
  const T* k;
  const T* v;  // [tokens, HV, V]
  const T* log_decay;  // null | [HV] | [tokens, HV] | [tokens, HV, K]
  const T* bonus;      // [HV, K] or null
  std::int64_t q_row, k_row, v_row, log_decay_row;
  const T* S;  // [M, HV, K, V]; of the recurrent form it may be final_S
  const T* z;  // [M, HV, K], with the normaliser

  T* o;  // [tokens, HV, V]
  T* final_S;
  T* final_z;
  T* weight;  // [tokens, HV], what the output was divided by; with the normaliser
  T* kept;    // [slots, HV, V (+ 1: z), K padded], states before every keep-th token, turned around; or null

  // backward
  const T* d_o;  // [tokens, HV, V]
  std::int64_t d_o_row;
  const T* d_final_S;  // null: zeros
  const T* d_final_z;
  T* dq;  // [parts, tokens, H, K], to be summed
  T* dk;
  T* dv;
  T* d_log_decay;  // [M, HV], to be summed | [tokens, HV] | [tokens, HV, K]
  T* d_bonus;      // [M, HV, K], to be summed
  T* d_S;
  T* d_z;

  T* scratch;
  std::int64_t scratch_size;  // numbers of each thread

  std::int64_t value_heads() const { return heads * ratio; }
  std::int64_t strips() const { return (values + strip - 1) / strip; }
  // Strips of the longest part.
  std::int64_t part() const { return (ratio * strips() + parts - 1) / parts; }
  // Where the kept states of sequence m begin; of packed sequences at a place that needs no look at the others.
  std::int64_t slot(std::int64_t m) const {
    if (sequences.bounds == nullptr) return m * ((sequences.tokens + keep - 1) / keep);
    return sequences.begin(m) / keep + m;
  }
};

struct GatedLinearForms {
  Body forward;  // a task is (sequence, key head, part)
  Body backward;
  Body recurrent;  // a task is (sequence, value head); needs 2 · K padded numbers a thread
  std::int64_t (*scratch)(const void* arguments, bool backward);  // numbers that a thread of the others needs
};

struct GatedLinearKernels {
  GatedLinearForms float32;
  GatedLinearForms float64;
  GatedLinearForms mixed;  // of float32, with products of bfloat16; null in sets without them
};

}  // namespace lavagna

LAVAGNA_KERNELS(GatedLinearKernels, gated_linear)
