// Gradients of the chunk form, chunk by chunk from the last to the first; dS, the gradient of the state behind a chunk,
// is carried as the state is forwards.
//
// With o = read ∘ (q S) + W v and S' = total ∘ S + kᵀ (write ∘ v), where W = weights:
//
//     dW = dO vᵀ                dv = Wᵀ dO + write ∘ (k dS)
//     dq = (read ∘ dO) Sᵀ + …   dk = (write ∘ v) dSᵀ + …   dS ← total ∘ dS + qᵀ (read ∘ dO)
//
// S is needed turned around, and that is how the forward pass kept it for every chunk of this one; dS is needed both ways.
#pragma once

#include "gated_linear_chunk.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T, class F, bool channel>
struct Backward {
  Pieces<T> pieces;
  Chunk<T, channel> chunk;
  T *d_o, *d_o_read;    // [C, Vp], the second times `read`
  T *d_weights, *d_qk;  // [C, C]
  T *dq, *dk;           // [C, Kp], sums over the value heads of the part
  T* dv;                // [C, Vp]
  T *d_reading, *d_writing, *d_rows, *d_column;  // [C, Kp]
  T* d_log_decay;                                // [C] or [C, Kp]
  T *reads, *writes;                             // [C], d(read) ∘ read and d(write) ∘ write
  T* d_log_total;                                // [Kp]
  T* d_bonus;                                    // [Kp] of each value head
  T* dS_turned;                                  // [Vp, Kp]
  T* dS;                                         // [K, Vp] of each value head

  // Room for factors: pairs of neighbours in rows, and pairs of rows.
  F *d_o_along, *d_o_read_along, *v_along, *written_along, *writing_along;
  F *d_o_across, *d_o_read_across, *reading_across, *weights_across, *S_across, *dS_turned_across;
  F* v_turned;   // [Vp, C]
  F* dS_across;  // [K, Vp] of each value head

  Backward(const Part<T>& p, T* memory) : pieces{memory}, chunk(p, pieces) {
    const GatedLinear<T>& a = p.a;
    const std::int64_t C = a.chunk, Kp = chunk.Kp, Vp = chunk.Vp, heads = a.part();
    for (T** piece : {&d_o, &d_o_read, &dv}) *piece = pieces.take(C * Vp);
    for (T** piece : {&d_weights, &d_qk}) *piece = pieces.take(C * C);
    for (T** piece : {&dq, &dk, &d_reading, &d_writing, &d_rows, &d_column, &d_log_decay}) *piece = pieces.take(C * Kp);
    for (T** piece : {&reads, &writes}) *piece = pieces.take(C);
    d_log_total = pieces.take(Kp);
    d_bonus = pieces.take(heads * Kp);
    dS_turned = pieces.take(Vp * Kp);
    dS = pieces.take(heads * chunk.K * Vp);
    for (F** piece : {&d_o_along, &d_o_read_along, &v_along, &written_along, &d_o_across, &d_o_read_across})
      *piece = pieces.template factors<F>(nullptr, C * Vp);
    for (F** piece : {&writing_along, &reading_across}) *piece = pieces.template factors<F>(nullptr, C * Kp);
    weights_across = pieces.template factors<F>(nullptr, C * C);
    for (F** piece : {&S_across, &dS_turned_across}) *piece = pieces.template factors<F>(nullptr, Vp * Kp);
    v_turned = reinterpret_cast<F*>(pieces.take(Vp / per<F> * C));
    dS_across = pieces.template factors<F>(dS, per<F> * heads * steps<F>(chunk.K) * Vp);
  }
};

// The gradient of what the division by the weights leaves, and of the weights in the normaliser's column.
template <class T>
void gather_gradient(const GatedLinear<T>& a, std::int64_t start, std::int64_t tokens, std::int64_t head, T* d_o,
                     std::int64_t C, std::int64_t Vp) {
  const std::int64_t V = a.values, HV = a.value_heads();
  gather(a.d_o + start * a.d_o_row + head * V, a.d_o_row, tokens, V, T(1), d_o, C, Vp);
  if (!a.normalizer) return;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const T* const o = a.o + ((start + i) * HV + head) * V;
    const T weight = a.weight[(start + i) * HV + head];
    T d_weight = 0;
    for (std::int64_t j = 0; j < V; ++j) {
      d_weight -= d_o[i * Vp + j] * o[j];
      d_o[i * Vp + j] /= weight;
    }
    d_o[i * Vp + V] = d_weight / weight;
  }
}

// sums[i] = Σ_c a_ic b_ic, and to += a. C rows, a multiple of lanes<T>.
template <class T>
void dot_and_add(std::int64_t C, std::int64_t Kp, const T* a, const T* b, T* dots, T* to) {
  constexpr int wide = lanes<T>;
  for (std::int64_t i = 0; i < C; i += wide) {
    Vec<T> products[wide] = {};
    for (int l = 0; l < wide; ++l)
      for (std::int64_t c = (i + l) * Kp; c < (i + l + 1) * Kp; c += wide) {
        const Vec<T> gradient = load(a + c);
        products[l] += gradient * load(b + c);
        store(to + c, load(to + c) + gradient);
      }
    store(dots + i, sums<T>(products));
  }
}

template <class T>
void add_to(std::int64_t count, const T* from, T* to) {
  for (std::int64_t c = 0; c < count; c += lanes<T>) store(to + c, load(to + c) + load(from + c));
}

// The gradients of a chunk that come through one value head; its state before the chunk is given turned around.
template <class T, class F, bool channel>
void backward_head(const Backward<T, F, channel>& f, Chunk<T, channel>& x, std::int64_t local,
                   std::int64_t head, const T* S_turned) {
  constexpr int wide = lanes<T>;
  const GatedLinear<T>& a = x.a;
  const std::int64_t K = x.K, Kp = x.Kp, Vp = x.Vp, C = x.C, V = a.values, HV = a.value_heads();
  const std::int64_t depth = V + a.normalizer;
  T* const dS = f.dS + local * K * Vp;
  F* const dS_across = f.dS_across + local * steps<F>(K) * Vp;
  const std::int64_t Kf = Kp / per<F>, Vf = Vp / per<F>;  // rows of factors along them

  x.decays(head);
  x.values(x.p.first + local);
  gather_gradient(a, x.start, x.tokens, head, f.d_o, C, Vp);
  const F* const d_o_along = along(C * Vp, f.d_o, f.d_o_along);
  const F* const d_o_across = across(C, Vp, f.d_o, Vp, f.d_o_across);
  const F *d_o_read_along = d_o_along, *d_o_read_across = d_o_across;
  if constexpr (!channel) {
    scale_rows(C, Vp, f.d_o, x.read, f.d_o_read);
    d_o_read_along = along(C * Vp, f.d_o_read, f.d_o_read_along);
    d_o_read_across = across(C, Vp, f.d_o_read, Vp, f.d_o_read_across);
  }
  const F* const v_along = along(C * Vp, x.v, f.v_along);
  const F* const written_along = channel ? v_along : along(C * Vp, x.written, f.written_along);
  const F* const writing_along = along(C * Kp, x.writing, f.writing_along);
  const F* const reading_across = across(C, Kp, x.reading, Kp, f.reading_across);
  const F* const weights_across = across(C, C, x.weights, C, f.weights_across);
  transpose(C, Vf, v_along, Vf, f.v_turned, C);
  transpose(K, Vp, dS, Vp, f.dS_turned, Kp);
  for (std::int64_t j = 0; j < depth; ++j)
    for (std::int64_t c = K; c < Kp; ++c) f.dS_turned[j * Kp + c] = 0;
  const F* const S_across = across(depth, Kp, S_turned, Kp, f.S_across);
  const F* const dS_turned_across = across(depth, Kp, f.dS_turned, Kp, f.dS_turned_across);

  tiles<T>(C, C, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    if (j >= i + tile.height) return;
    tile.add(steps<F>(depth), d_o_along + i * Vf, Vf, 1, f.v_turned + j, C);
    tile.put(f.d_weights + i * C + j, C);
  });
  tiles<T>(C, Vp, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    const std::int64_t token = i / per<F>;
    tile.add(steps<F>(K), writing_along + i * Kf, Kf, 1, dS_across + j, Vp);
    if (!channel) tile.scale(x.write + i);
    tile.add(steps<F>(C - i), weights_across + token * C + i, 1, C, d_o_across + token * Vp + j, Vp);
    tile.put(f.dv + i * Vp + j, Vp);
  });
  scatter(f.dv, Vp, x.tokens, V, T(1), a.dv + (x.start * HV + head) * V, HV * V);
  product<T, Into::set>(C, Kp, steps<F>(depth), d_o_read_along, Vf, 1, S_across, Kp, f.d_reading, Kp);
  product<T, Into::set>(C, Kp, steps<F>(depth), written_along, Vf, 1, dS_turned_across, Kp, f.d_writing, Kp);

  for (std::int64_t c = 0; c < Kp; c += wide) {
    Vec<T> sum{};
    for (std::int64_t j = c; j < depth * Kp; j += Kp) sum += load(f.dS_turned + j) * load(S_turned + j);
    store(f.d_log_total + c, sum * load(x.total + c));
  }
  tiles<T>(K, Vp, [&](auto tile, std::int64_t c, std::int64_t j) LAVAGNA_LAMBDA {
    tile.take(dS + c * Vp + j, Vp);
    tile.scale(x.total + c);
    tile.add(steps<F>(x.tokens), reading_across + c, 1, Kp, d_o_read_across + j, Vp);
    tile.put(dS + c * Vp + j, Vp);
    tile.put_across(dS_across, Vp, c, j);
  });

  const bool before = a.bonus != nullptr;
  if (before) {
    const T* const bonus = a.bonus + head * K;
    T* const d_bonus = f.d_bonus + local * Kp;
    for (std::int64_t i = 0; i < x.tokens; ++i) {
      const T d = f.d_weights[i * C + i];
      for (std::int64_t c = 0; c < K; ++c) {
        const T q = x.q[i * Kp + c], k = x.k[i * Kp + c];
        f.dq[i * Kp + c] += d * bonus[c] * k;
        f.dk[i * Kp + c] += d * bonus[c] * q;
        d_bonus[c] += d * q * k;
      }
    }
  }

  if constexpr (channel) {
    const ChannelDecayGradients<T, 1> gradients{{f.d_weights},  {f.d_reading}, f.d_writing,  f.d_log_total,
                                                {f.d_rows}, f.d_column,    f.d_log_decay};
    before ? absorb_backward<T, true>(x.absorbed, gradients) : absorb_backward<T, false>(x.absorbed, gradients);
    add_to(C * Kp, f.d_rows, f.dq);
    add_to(C * Kp, f.d_column, f.dk);
    scatter(f.d_log_decay, Kp, x.tokens, K, T(1), a.d_log_decay + (x.start * HV + head) * K, HV * K);
  } else {
    dot_and_add(C, Kp, f.d_reading, x.q, f.reads, f.dq);
    dot_and_add(C, Kp, f.d_writing, x.k, f.writes, f.dk);
    for (std::int64_t i = 0; i < C; ++i)
      for (std::int64_t j = i * C; j <= i * C + i; j += wide) {
        const Vec<T> gradient = load(f.d_weights + j) * load(x.between + j);
        store(f.d_qk + j, load(f.d_qk + j) + gradient);
        store(f.d_weights + j, gradient * load(x.qk + j));
      }
    if (a.gate == Gate::none) return;
    Vec<T> total{};
    for (std::int64_t c = 0; c < Kp; c += wide) total += load(f.d_log_total + c);
    fill(f.d_log_decay, C, T(0));
    const T d_total = sum<T>(total);
    before ? segments_backward<T, true>(C, f.d_weights, C, f.reads, f.writes, d_total, f.d_log_decay)
           : segments_backward<T, false>(C, f.d_weights, C, f.reads, f.writes, d_total, f.d_log_decay);
    if (a.gate == Gate::constant) {
      T& d = a.d_log_decay[x.p.sequence * HV + head];
      for (std::int64_t i = 0; i < x.tokens; ++i) d += f.d_log_decay[i];
    } else {
      for (std::int64_t i = 0; i < x.tokens; ++i) a.d_log_decay[(x.start + i) * HV + head] = f.d_log_decay[i];
    }
  }
}

template <class T, class F, bool channel>
void backward_part(const Part<T>& p, T* memory) {
  const Backward<T, F, channel> f(p, memory);
  Chunk<T, channel> x = f.chunk;
  const GatedLinear<T>& a = p.a;
  const std::int64_t K = x.K, Kp = x.Kp, Vp = x.Vp, V = a.values, HV = a.value_heads(), heads = p.last - p.first;
  const std::int64_t state = (V + a.normalizer) * Kp;  // numbers of a kept state
  const auto at = [&](std::int64_t r) { return p.sequence * HV + p.value_head(p.first + r); };

  for (std::int64_t r = 0; r < heads; ++r) {
    T* const dS = f.dS + r * K * Vp;
    if (a.d_final_S != nullptr)
      gather(a.d_final_S + at(r) * K * V, V, K, V, T(1), dS, K, Vp);
    else
      fill(dS, K * Vp, T(0));
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) dS[c * Vp + V] = a.d_final_z != nullptr ? a.d_final_z[at(r) * K + c] : T(0);
    pack_across(K, Vp, dS, f.dS_across + r * steps<F>(K) * Vp, Vp);
    if (a.gate == Gate::constant) a.d_log_decay[at(r)] = 0;
  }
  fill(f.d_bonus, heads * Kp, T(0));

  for (std::int64_t n = (p.length - 1) / a.chunk; n >= 0 && p.length > 0; --n) {
    x.move(n * a.chunk);
    x.pairs();
    const std::int64_t C = x.C;
    fill(f.dq, C * Kp, T(0));
    fill(f.dk, C * Kp, T(0));
    if (!channel) fill(f.d_qk, C * C, T(0));
    for (std::int64_t r = 0; r < heads; ++r) {
      const std::int64_t head = p.value_head(p.first + r);
      backward_head(f, x, r, head, a.kept + ((a.slot(p.sequence) + n) * HV + head) * state);
    }
    if constexpr (!channel) {
      tiles<T>(C, Kp, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
        tile.take(f.dq + i * Kp + j, Kp);
        tile.add(i + tile.height, f.d_qk + i * C, C, 1, x.k + j, Kp);
        tile.put(f.dq + i * Kp + j, Kp);
      });
      tiles<T>(C, Kp, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
        tile.take(f.dk + i * Kp + j, Kp);
        tile.add(C - i, f.d_qk + i * C + i, 1, C, x.q + i * Kp + j, Kp);
        tile.put(f.dk + i * Kp + j, Kp);
      });
    }
    const std::int64_t target = ((p.part * a.tokens + x.start) * a.heads + p.head) * K;
    scatter(f.dq, Kp, x.tokens, K, a.scale, a.dq + target, a.heads * K);
    scatter(f.dk, Kp, x.tokens, K, T(1), a.dk + target, a.heads * K);
  }

  for (std::int64_t r = 0; r < heads; ++r) {
    const T* const dS = f.dS + r * K * Vp;
    scatter(dS, Vp, K, V, T(1), a.d_S + at(r) * K * V, V);
    if (a.normalizer)
      for (std::int64_t c = 0; c < K; ++c) a.d_z[at(r) * K + c] = dS[c * Vp + V];
    if (a.bonus != nullptr) scatter(f.d_bonus + r * Kp, Kp, 1, K, T(1), a.d_bonus + at(r) * K, K);
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
