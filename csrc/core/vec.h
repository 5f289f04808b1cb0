// Vectors of one instruction set, and the few functions on them that kernels need.
//
// For files that are compiled once per instruction set (csrc/kernels): everything is in an unnamed namespace inside
// the one named after the set, so that no function compiled for a wide set can stand in for a narrow one.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if LAVAGNA_VECTOR_BYTES == 64
#include <immintrin.h>
#endif

#ifndef LAVAGNA_ISA
#error "kernels are compiled with LAVAGNA_ISA and LAVAGNA_VECTOR_BYTES; see CMakeLists.txt"
#endif

#define LAVAGNA_INLINE inline __attribute__((always_inline))
#define LAVAGNA_LAMBDA __attribute__((always_inline))
#define LAVAGNA_UNROLL _Pragma("GCC unroll 32")

namespace lavagna::LAVAGNA_ISA {
namespace {

typedef float VecF __attribute__((vector_size(LAVAGNA_VECTOR_BYTES)));
typedef double VecD __attribute__((vector_size(LAVAGNA_VECTOR_BYTES)));
typedef std::int32_t VecI32 __attribute__((vector_size(LAVAGNA_VECTOR_BYTES)));
typedef std::int64_t VecI64 __attribute__((vector_size(LAVAGNA_VECTOR_BYTES)));

// V, the vector; I, the vector of integers as wide; and the constants of the number format.
template <class T>
struct Number;

template <>
struct Number<float> {
  using V = VecF;
  using I = VecI32;
  using Int = std::int32_t;
  static constexpr int mantissa = 23;
  static constexpr int bias = 127;
  static constexpr float round = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits
  static constexpr float lowest_exponent = -126.0f;
};

template <>
struct Number<double> {
  using V = VecD;
  using I = VecI64;
  using Int = std::int64_t;
  static constexpr int mantissa = 52;
  static constexpr int bias = 1023;
  static constexpr double round = 6755399441055744.0;  // 1.5 · 2^52
  static constexpr double lowest_exponent = -1022.0;
};

template <class T>
using Vec = typename Number<T>::V;

// Numbers in a vector.
template <class T>
constexpr int lanes = LAVAGNA_VECTOR_BYTES / sizeof(T);

template <class T>
LAVAGNA_INLINE Vec<T> load(const T* from) {
  Vec<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class T>
LAVAGNA_INLINE void store(T* to, Vec<T> v) {
  std::memcpy(to, &v, sizeof v);
}

template <class T>
LAVAGNA_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}

// The first `count` numbers (fewer than `lanes`), zeros behind them; nothing past them is read.
template <class T>
LAVAGNA_INLINE Vec<T> load_part(const T* from, int count) {
  Vec<T> v{};
  std::memcpy(&v, from, count * sizeof(T));
  return v;
}

template <class T>
LAVAGNA_INLINE void store_part(T* to, Vec<T> v, int count) {
  std::memcpy(to, &v, count * sizeof(T));
}

// Of a number and NaN, both give the second operand: what may be NaN stands there, so that it comes out.
template <class T>
LAVAGNA_INLINE Vec<T> max(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}

template <class T>
LAVAGNA_INLINE Vec<T> min(Vec<T> a, Vec<T> b) {
  return a < b ? a : b;
}

// The same four where the compiler makes more of them than the one instruction there is: a call of memcpy, which takes
// every vector out of its register, and a comparison with a choice. The masked forms, for it warns of what the others
// leave undefined.
#if LAVAGNA_VECTOR_BYTES == 64
#define LAVAGNA_INSTRUCTIONS(T, V, Mask, suffix)                                                               \
  template <>                                                                                                  \
  LAVAGNA_INLINE Vec<T> load_part(const T* from, int count) {                                                  \
    return (Vec<T>)_mm512_maskz_loadu_##suffix(Mask((1u << count) - 1), from);                                 \
  }                                                                                                            \
  template <>                                                                                                  \
  LAVAGNA_INLINE void store_part(T* to, Vec<T> v, int count) {                                                 \
    _mm512_mask_storeu_##suffix(to, Mask((1u << count) - 1), (V)v);                                            \
  }                                                                                                            \
  template <>                                                                                                  \
  LAVAGNA_INLINE Vec<T> max<T>(Vec<T> a, Vec<T> b) {                                                           \
    return (Vec<T>)_mm512_maskz_max_##suffix(Mask(-1), (V)a, (V)b);                                            \
  }                                                                                                            \
  template <>                                                                                                  \
  LAVAGNA_INLINE Vec<T> min<T>(Vec<T> a, Vec<T> b) {                                                           \
    return (Vec<T>)_mm512_maskz_min_##suffix(Mask(-1), (V)a, (V)b);                                            \
  }
LAVAGNA_INSTRUCTIONS(float, __m512, __mmask16, ps)
LAVAGNA_INSTRUCTIONS(double, __m512d, __mmask8, pd)
#undef LAVAGNA_INSTRUCTIONS
#endif

// Sum of the lanes, always in the same order.
template <class T>
LAVAGNA_INLINE T sum(Vec<T> v) {
  T part[lanes<T>];
  store(part, v);
  for (int half = lanes<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}

// Lane l of x, or lane l of y where l & bit; with `crossed`, lane l ^ bit of the same.
template <class T, int bit, bool crossed, int... l>
LAVAGNA_INLINE Vec<T> merge(Vec<T> x, Vec<T> y, std::integer_sequence<int, l...>) {
  return __builtin_shufflevector(x, y, ((crossed ? l ^ bit : l) + (l & bit ? lanes<T> : 0))...);
}

template <class T, int bit, bool crossed>
LAVAGNA_INLINE Vec<T> merge(Vec<T> x, Vec<T> y) {
  return merge<T, bit, crossed>(x, y, std::make_integer_sequence<int, lanes<T>>());
}

// One step of turning a square around: of the upper or the lower of two rows `bit` apart, the lanes with or without
// the bit stay, and the others come from the other row, `bit` lanes away.
template <class T, int bit, bool upper, int... l>
LAVAGNA_INLINE Vec<T> lift(Vec<T> x, Vec<T> y, std::integer_sequence<int, l...>) {
  return __builtin_shufflevector(
      x, y, (upper ? (l & bit ? lanes<T> + (l ^ bit) : l) : (l & bit ? lanes<T> + l : (l ^ bit)))...);
}

template <class T, int bit, bool upper>
LAVAGNA_INLINE Vec<T> lift(Vec<T> x, Vec<T> y) {
  return lift<T, bit, upper>(x, y, std::make_integer_sequence<int, lanes<T>>());
}

// The sums of as many vectors as a vector has lanes: lane l of the result is the sum of x[l]. Changes x. Neighbours
// first, so that it may be done in parts: of `count` vectors from number `count` · k on with bit 1, then of the results
// with bit `count`.
template <class T, int count = lanes<T>, int bit = 1>
LAVAGNA_INLINE Vec<T> sums(Vec<T>* x) {
  if constexpr (count == 1) {
    return x[0];
  } else {
    LAVAGNA_UNROLL
    for (int i = 0; i < count / 2; ++i)
      x[i] = merge<T, bit, false>(x[2 * i], x[2 * i + 1]) + merge<T, bit, true>(x[2 * i], x[2 * i + 1]);
    return sums<T, count / 2, 2 * bit>(x);
  }
}

// Turn a square of as many vectors as a vector has lanes around: lane j of x[i] and lane i of x[j] change places.
template <class T, int bit = lanes<T> / 2>
LAVAGNA_INLINE void turn(Vec<T>* x) {
  if constexpr (bit > 0) {
    LAVAGNA_UNROLL
    for (int i = 0; i < lanes<T>; ++i) {
      if (i & bit) continue;
      const Vec<T> upper = x[i], lower = x[i + bit];
      x[i] = lift<T, bit, true>(upper, lower);
      x[i + bit] = lift<T, bit, false>(upper, lower);
    }
    turn<T, bit / 2>(x);
  }
}

// 0, 1, 2, ... as integers of the width of T.
template <class T, int... l>
LAVAGNA_INLINE typename Number<T>::I lane_numbers(std::integer_sequence<int, l...>) {
  return typename Number<T>::I{l...};
}

template <class T>
LAVAGNA_INLINE typename Number<T>::I lane_numbers() {
  return lane_numbers<T>(std::make_integer_sequence<int, lanes<T>>());
}

// What 2^x and e^x are made of: x = n + f with f in [−½, ½] and n from adding and subtracting a number whose last digit
// is 1 (`shifted` is x after the first of the two); 2^f by a polynomial; and 2^n by adding n to the exponent.
//
// The polynomials are minimax among those that begin with 1 + f ln 2: degree 5, relative error 1e-7, with rounding
// 1.8e-7; `fine`, degree 6, 2e-8 and 8e-8, for what is multiplied many times. For float64 Taylor's series of degree 13,
// 4e-17.
template <bool fine = false>
LAVAGNA_INLINE VecF exp2_of_fraction(VecF f) {
  VecF p;
  if constexpr (fine) {
    p = splat(1.5353362e-4f);
    p = p * f + 1.3398875e-3f;
    p = p * f + 9.6184369e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
  } else {
    p = splat(1.33006e-3f);
    p = p * f + 9.66969e-3f;
    p = p * f + 5.550558e-2f;
    p = p * f + 2.4022282e-1f;
  }
  p = p * f + 6.9314718e-1f;
  return p * f + 1.0f;
}

template <bool fine = false>
LAVAGNA_INLINE VecD exp2_of_fraction(VecD f) {
  f *= 0.693147180559945309417;
  VecD p = splat(1.0 / 6227020800);
  constexpr double inverse_factorials[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                           1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,     1.0 / 6,
                                           0.5,             1.0,            1.0};
  LAVAGNA_UNROLL
  for (int i = 0; i < 13; ++i) p = p * f + inverse_factorials[i];
  return p;
}

template <class T>
LAVAGNA_INLINE Vec<T> times_power(Vec<T> p, Vec<T> shifted) {
  typename Number<T>::I n, bits;
  std::memcpy(&n, &shifted, sizeof n);
  std::memcpy(&bits, &p, sizeof bits);
  bits += n << Number<T>::mantissa;
  std::memcpy(&p, &bits, sizeof p);
  return p;
}

template <class T, bool fine>
LAVAGNA_INLINE Vec<T> any_exp2(Vec<T> x) {
  const Vec<T> floor = splat<T>(Number<T>::lowest_exponent);
  const Vec<T> clamped = max<T>(floor, x);
  const Vec<T> shifted = clamped + Number<T>::round;
  const Vec<T> fraction = clamped - (shifted - Number<T>::round);
  const Vec<T> power = times_power<T>(exp2_of_fraction<fine>(fraction), shifted);
  return x < floor ? Vec<T>{} : power;
}

// 2^x for x below 128 (float32) or 1024; 0 below the smallest normal number, and exactly 1 at 0.
template <bool fine = false>
LAVAGNA_INLINE VecF exp2(VecF x) {
  return any_exp2<float, fine>(x);
}

template <bool fine = false>
LAVAGNA_INLINE VecD exp2(VecD x) {
  return any_exp2<double, fine>(x);
}

template <class T>
constexpr T log2_e = T(1.44269504088896340735992468100189214);
template <class T>
constexpr T ln_2 = T(0.693147180559945309417232121458176568);

// e^x; the relative error of x log2(e) grows to 5e-6 where the power is next to nothing (float32).
template <class T>
LAVAGNA_INLINE Vec<T> exp(Vec<T> x) {
  return exp2<true>(x * log2_e<T>);
}

// e^x, as exact relative to itself for large −x as for small: n ln 2 is taken from x in two parts, the first of which
// has so few digits that its product with n is exact.
template <class T>
LAVAGNA_INLINE Vec<T> exact_exp(Vec<T> x) {
  constexpr T head = sizeof(T) == 4 ? T(0.693359375) : T(0.6931471803691238);  // 10 and 32 binary digits
  constexpr T tail = sizeof(T) == 4 ? T(-2.12194440054690583e-4) : T(1.90821492927058770002e-10);
  const Vec<T> floor = splat<T>(Number<T>::lowest_exponent * ln_2<T>);
  const Vec<T> clamped = max<T>(floor, x);
  const Vec<T> shifted = clamped * log2_e<T> + Number<T>::round;
  const Vec<T> n = shifted - Number<T>::round;
  const Vec<T> rest = (clamped - n * head) - n * tail;
  const Vec<T> power = times_power<T>(exp2_of_fraction<>(rest * log2_e<T>), shifted);
  return x < floor ? Vec<T>{} : power;
}

// 1 / (1 + e^−x), and 0 where that is no normal number. The exponent is kept where the power is one: from there on 1
// beside it, or it beside 1, is nothing.
template <class T>
LAVAGNA_INLINE Vec<T> sigmoid(Vec<T> x) {
  const Vec<T> lowest = splat<T>(Number<T>::lowest_exponent);
  const Vec<T> exponent = min<T>(splat<T>(Number<T>::bias), max<T>(lowest, x * -log2_e<T>));
  const Vec<T> shifted = exponent + Number<T>::round;
  const Vec<T> fraction = exponent - (shifted - Number<T>::round);
  return T(1) / (T(1) + times_power<T>(exp2_of_fraction<>(fraction), shifted));
}

// ln(1 + e^x), with full relative accuracy where it is nearly e^x.
//
// max(x, 0) + ln(1 + w) with w = e^−|x|, and ln(1 + w) = 2 artanh(s / 2) with s = 2w / (2 + w) ≤ 2/3, which keeps the
// relative accuracy of w: s + s³ p(s²), where p is minimax (float32; 5e-9) or Taylor's (4e-19). The caller makes s,
// which the slope wants too: w = 2s / (2 − s).
LAVAGNA_INLINE VecF rest_of_artanh(VecF square) {
  VecF p = splat(5.4735291e-04f);
  p = p * square + 2.1874327e-03f;
  p = p * square + 1.2506781e-02f;
  return p * square + 8.3333016e-02f;
}

LAVAGNA_INLINE VecD rest_of_artanh(VecD square) {
  VecD p = splat(1.0 / 37);
  LAVAGNA_UNROLL
  for (int i = 35; i > 1; i -= 2) p = p * (square * 0.25) + 1.0 / i;
  return p * 0.25;
}

template <class T>
LAVAGNA_INLINE Vec<T> softplus(Vec<T> x, Vec<T> s) {
  const Vec<T> square = s * s;
  return max<T>(Vec<T>{}, x) + (rest_of_artanh(square) * square * s + s);
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
