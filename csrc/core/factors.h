// What products of small matrices multiply: numbers, or pairs of them in bfloat16.
//
// AVX512-BF16 multiplies two pairs lane by lane and adds both products to a float32, as fast as it multiplies and adds
// one: half the steps along the depth of a product. Sums are float32 either way. Kernels are templates over the
// factors' type F. Where it is the type T of all numbers, a matrix and its factors are the same memory, and what
// follows does nothing; where it is Pair, the factors lie beside the matrix and are written with it.
//
// Pairs go along the depth. In a left matrix [m, depth] they are neighbours in a row; in a right one [depth, n], or a
// left one that is turned around, they come of two rows, lane by lane.
#pragma once

#include <type_traits>

#include "vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

struct Pair {
  std::int32_t halves;  // the first in the lower one
};

// Whether there are products of pairs: on some processors of the set, and the compiler takes them.
#if defined(LAVAGNA_PAIRS)
constexpr bool has_pairs = true;
#else
constexpr bool has_pairs = false;
#endif

// Numbers along the depth in one factor, and the factors that so many numbers take.
template <class F>
constexpr std::int64_t per = std::is_same_v<F, Pair> ? 2 : 1;

template <class F>
constexpr std::int64_t steps(std::int64_t depth) {
  return (depth + per<F> - 1) / per<F>;
}

// A vector of factors, and one factor in all its lanes.
template <class T>
LAVAGNA_INLINE Vec<T> load_factors(const T* from) {
  return load(from);
}

LAVAGNA_INLINE VecI32 load_factors(const Pair* from) {
  VecI32 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class T>
LAVAGNA_INLINE Vec<T> spread_factor(T x) {
  return splat(x);
}

LAVAGNA_INLINE VecI32 spread_factor(Pair x) { return x.halves - VecI32{}; }

// sum += a · b. The instructions for pairs are written out, so that a file of the set AVX-512 has these and nothing
// else that other processors of the set lack.
template <class V>
LAVAGNA_INLINE void add_product(V& sum, V a, V b) {
  sum += a * b;
}

// The numbers themselves, or the pairs beside them.
template <class T>
LAVAGNA_INLINE T* factors_of(T* numbers, std::remove_const_t<T>*) {
  return numbers;
}

template <class T>
LAVAGNA_INLINE Pair* factors_of(T*, Pair* pairs) {
  return pairs;
}

#if defined(LAVAGNA_PAIRS)
LAVAGNA_INLINE void add_product(VecF& sum, VecI32 a, VecI32 b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// Numbers of two vectors, one vector behind the other, rounded to the nearest.
LAVAGNA_INLINE VecI32 narrow(VecF first, VecF second) {
  VecI32 v;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(v) : "v"(first), "v"(second));
  return v;
}

// Pairs of the numbers in the same lanes.
LAVAGNA_INLINE VecI32 pair_up(VecF first, VecF second) {
  typedef std::int16_t Halves __attribute__((vector_size(64)));
  const Halves halves = (Halves)narrow(first, second);
  return (VecI32)__builtin_shufflevector(halves, halves, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24,
                                         9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

LAVAGNA_INLINE void store_pairs(Pair* to, VecI32 pairs) { std::memcpy(to, &pairs, sizeof pairs); }
#endif

// Pairs of neighbours, of `count` numbers: a multiple of two vectors.
template <class T, class F>
LAVAGNA_INLINE void pack_along([[maybe_unused]] std::int64_t count, [[maybe_unused]] const T* from,
                               [[maybe_unused]] F* to) {
  if constexpr (per<F> == 2)
    for (std::int64_t c = 0; c < count; c += 2 * lanes<T>)
      store_pairs(to + c / 2, narrow(load(from + c), load(from + c + lanes<T>)));
}

// Pairs of rows, of a matrix [m, n], n a multiple of a vector; a last one alone meets zeros.
template <class T, class F>
LAVAGNA_INLINE void pack_across([[maybe_unused]] std::int64_t m, [[maybe_unused]] std::int64_t n,
                                [[maybe_unused]] const T* from, [[maybe_unused]] F* to,
                                [[maybe_unused]] std::int64_t row) {
  if constexpr (per<F> == 2)
    for (std::int64_t i = 0; i < m; i += 2)
      for (std::int64_t j = 0; j < n; j += lanes<T>)
        store_pairs(to + i / 2 * row + j,
                    pair_up(load(from + i * row + j), i + 1 < m ? load(from + (i + 1) * row + j) : Vec<T>{}));
}

// The factors of a matrix: itself, or what was packed of it.
template <class T, class F>
LAVAGNA_INLINE const F* along(std::int64_t count, const T* from, F* room) {
  pack_along(count, from, room);
  return factors_of(from, room);
}

template <class T, class F>
LAVAGNA_INLINE const F* across(std::int64_t m, std::int64_t n, const T* from, std::int64_t row, F* room) {
  pack_across(m, n, from, room, row);
  return factors_of(from, room);
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
