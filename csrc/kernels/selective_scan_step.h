// One token of the selective scan, in place.
#pragma once

#include "selective_scan_decay.h"
#include "selective_scan_tile.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// One token of every sequence. States lie in the lanes here, for that is how the caller keeps them.
template <class T>
void step(const SelectiveScan<T>& a, std::int64_t m, const Block& block) {
  const Decay<T> decay;
  const std::int64_t N = a.states;
  T delta[lanes<T>], u[lanes<T>], y[lanes<T>];
  prepare(a, m, 1, block, delta, u, y);
  Vec<T> parts[lanes<T>] = {};
  for (std::int64_t i = 0; i < block.width; ++i) {
    const std::int64_t d = block.first + i;
    const T* const A = a.A + d * N;
    const T* const B = a.B.row != 0 ? a.B.data + m * a.B.row + block.group * a.B.group : a.B.data + d * N;
    const T* const C = a.C.row != 0 ? a.C.data + m * a.C.row + block.group * a.C.group : a.C.data + d * N;
    const std::int64_t at = (m * a.channels + d) * N;
    for (std::int64_t v = 0; v * lanes<T> < N; ++v) {
      Vec<T> fade[] = {delta[i] * bounded<T>(get(A, v, N))};
      decay(fade);
      const Vec<T> h = fade[0] * get(a.state + at, v, N) + u[i] * get(B, v, N);
      put(a.final + at, v, N, h);
      parts[i] += h * get(C, v, N);
    }
  }
  store(y, load(y) + sums<T>(parts));
  gate(a, m, 1, block, y);
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
