// The inner loops of the selective scan's way back: a tile once more forwards, then backwards.
#pragma once

#include "selective_scan_decay.h"
#include "selective_scan_tile.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Where a sum of vectors of channels for a coefficient lies: a timed one's [token, count, lanes] is shared by all channels
// of the block, a constant one's is [vectors, padded N, lanes].
template <bool timed, class T>
LAVAGNA_INLINE T* sum_at(T* sums, std::int64_t token, int count, std::int64_t padded, int i, int n) {
  return sums + (timed ? token * count + n : i * padded + n) * lanes<T>;
}

// Recompute a tile from the state before it, `count` states of `wide` vectors together. The decays a_t and what they leave
// of the state before, a_t h_{t−1}, are written to [token, count, wide, lanes], for the way back. y += C h, for the gate's
// gradient, and dC += dy h.
template <int wide, int count, bool B_timed, bool C_timed, class T>
void recompute(const Ahead* ahead, int fetches, std::int64_t tokens, const T* delta, const T* u, const T* A,
               const Held<T>& B, const Held<T>& C, std::int64_t v, std::int64_t n0, std::int64_t padded,
               const T* const* kept, const T* const* next, const T* dy, T* decays, T* lefts, T* y, T* dC) {
  const Decay<T> decay;
  constexpr std::int64_t step = count * wide * lanes<T>;
  Vec<T> h[count][wide], A_n[count][wide];
  const T* B_v[wide];
  const T* C_v[wide];
  LAVAGNA_UNROLL
  for (int i = 0; i < wide; ++i) {
    B_v[i] = B.at(v + i, n0);
    C_v[i] = C.at(v + i, n0);
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      h[n][i] = load(kept[i] + (n0 + n) * selective_scan_lanes);
      __builtin_prefetch(next[i] + (n0 + n) * selective_scan_lanes, 0, 2);
      A_n[n][i] = load(A + (i * padded + n0 + n) * lanes<T>);
    }
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < fetches; ++i) ahead[i].fetch<2>(t);
    Vec<T> delta_t[wide], u_t[wide], dy_t[wide], sum[wide];
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) {
      delta_t[i] = load(delta + i * pitch<T> + t * lanes<T>);
      u_t[i] = load(u + i * pitch<T> + t * lanes<T>);
      dy_t[i] = load(dy + i * pitch<T> + t * lanes<T>);
      sum[i] = load(y + i * pitch<T> + t * lanes<T>);
    }
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      Vec<T> a[wide];
      LAVAGNA_UNROLL
      for (int i = 0; i < wide; ++i) a[i] = delta_t[i] * A_n[n][i];
      decay(a);
      Vec<T> dC_n = load(sum_at<C_timed>(dC, t, count, padded, 0, n));
      LAVAGNA_UNROLL
      for (int i = 0; i < wide; ++i) {
        if (i > 0 && !C_timed) dC_n = load(sum_at<C_timed>(dC, t, count, padded, i, n));
        store(decays + t * step + (n * wide + i) * lanes<T>, a[i]);
        const Vec<T> left = a[i] * h[n][i];
        store(lefts + t * step + (n * wide + i) * lanes<T>, left);
        h[n][i] = left + u_t[i] * coefficient<B_timed>(B_v[i], t, B.step(), n);
        sum[i] += h[n][i] * coefficient<C_timed>(C_v[i], t, C.step(), n);
        dC_n += dy_t[i] * h[n][i];
        if (i == wide - 1 || !C_timed) store(sum_at<C_timed>(dC, t, count, padded, i, n), dC_n);
      }
    }
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) store(y + i * pitch<T> + t * lanes<T>, sum[i]);
  }
}

// Where the sums of a sweep go.
template <class T>
struct Sums {
  T* dB;
  T* dA;
  T* du;
  T* d_delta;
  bool first;  // du and d_delta hold nothing yet
};

// The way back through a tile: g_t = C_t dy_t + a_{t+1} g_{t+1} is the gradient of h_t, `carry` is a_t g_t.
template <int wide, int count, bool B_timed, bool C_timed, class T>
void sweep(std::int64_t tokens, const T* delta, const T* u, const T* dy, const T* A, const Held<T>& B, const Held<T>& C,
           std::int64_t v, std::int64_t n0, std::int64_t padded, const T* decays, const T* lefts, T* carry,
           const Sums<T>& sums) {
  constexpr std::int64_t step = count * wide * lanes<T>;
  Vec<T> g[count][wide], dA[count][wide], A_n[count][wide];
  const T* B_v[wide];
  const T* C_v[wide];
  LAVAGNA_UNROLL
  for (int i = 0; i < wide; ++i) {
    B_v[i] = B.at(v + i, n0);
    C_v[i] = C.at(v + i, n0);
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      g[n][i] = load(carry + (i * padded + n0 + n) * lanes<T>);
      dA[n][i] = load(sums.dA + (i * padded + n0 + n) * lanes<T>);
      A_n[n][i] = load(A + (i * padded + n0 + n) * lanes<T>);
    }
  }
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    Vec<T> delta_t[wide], u_t[wide], dy_t[wide], du[wide], d_delta[wide];
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) {
      delta_t[i] = load(delta + i * pitch<T> + t * lanes<T>);
      u_t[i] = load(u + i * pitch<T> + t * lanes<T>);
      dy_t[i] = load(dy + i * pitch<T> + t * lanes<T>);
      du[i] = sums.first ? Vec<T>{} : load(sums.du + i * pitch<T> + t * lanes<T>);
      d_delta[i] = sums.first ? Vec<T>{} : load(sums.d_delta + i * pitch<T> + t * lanes<T>);
    }
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      Vec<T> dB = load(sum_at<B_timed>(sums.dB, t, count, padded, 0, n));
      LAVAGNA_UNROLL
      for (int i = 0; i < wide; ++i) {
        const std::int64_t at = t * step + (n * wide + i) * lanes<T>;
        if (i > 0 && !B_timed) dB = load(sum_at<B_timed>(sums.dB, t, count, padded, i, n));
        g[n][i] += dy_t[i] * coefficient<C_timed>(C_v[i], t, C.step(), n);
        dB += u_t[i] * g[n][i];
        du[i] += g[n][i] * coefficient<B_timed>(B_v[i], t, B.step(), n);
        const Vec<T> exponent = g[n][i] * load(lefts + at);
        g[n][i] *= load(decays + at);
        dA[n][i] += delta_t[i] * exponent;
        d_delta[i] += exponent * A_n[n][i];
        if (i == wide - 1 || !B_timed) store(sum_at<B_timed>(sums.dB, t, count, padded, i, n), dB);
      }
    }
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) {
      store(sums.du + i * pitch<T> + t * lanes<T>, du[i]);
      store(sums.d_delta + i * pitch<T> + t * lanes<T>, d_delta[i]);
    }
  }
  LAVAGNA_UNROLL
  for (int i = 0; i < wide; ++i)
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      store(carry + (i * padded + n0 + n) * lanes<T>, g[n][i]);
      store(sums.dA + (i * padded + n0 + n) * lanes<T>, dA[n][i]);
    }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
