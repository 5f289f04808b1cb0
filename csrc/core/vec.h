// Vectors of one instruction set, and the few functions on them that kernels need.
//
// For files that are compiled once per instruction set (csrc/kernels): everything is in an unnamed namespace inside
// the one named after the set, so that no function compiled for a wide set can stand in for a narrow one.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

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

template <class T>
LAVAGNA_INLINE Vec<T> max(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}

template <class T>
LAVAGNA_INLINE Vec<T> min(Vec<T> a, Vec<T> b) {
  return a < b ? a : b;
}

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

// The sums of as many vectors as a vector has lanes: lane l of the result is the sum of x[l]. Changes x.
template <class T, int half = lanes<T> / 2>
LAVAGNA_INLINE Vec<T> sums(Vec<T>* x) {
  if constexpr (half == 0) {
    return x[0];
  } else {
    LAVAGNA_UNROLL
    for (int i = 0; i < half; ++i)
      x[i] = merge<T, half, false>(x[i], x[i + half]) + merge<T, half, true>(x[i], x[i + half]);
    return sums<T, half / 2>(x);
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

// 2^x for x below 128 (float32) or 1024; 0 below the smallest normal number, and exactly 1 at 0.
//
// x = n + f with f in [−½, ½]: n by adding and subtracting a number whose last digit is 1, 2^f by a polynomial
// (degree 5, minimax among those that are 1 at 0: relative error 9e-8, with rounding 1.7e-7; `fine`, degree 6: 2e-8 and
// 8e-8, for what is multiplied many times; for float64 Taylor's series of degree 13, 4e-17), 2^n by adding n to the
// exponent.
template <bool fine = false>
LAVAGNA_INLINE VecF exp2(VecF x) {
  const VecF floor = splat<float>(Number<float>::lowest_exponent);
  const VecF clamped = max<float>(x, floor);
  const VecF shifted = clamped + Number<float>::round;
  const VecF f = clamped - (shifted - Number<float>::round);
  VecF p;
  if constexpr (fine) {
    p = splat(1.5353362e-4f);
    p = p * f + 1.3398875e-3f;
    p = p * f + 9.6184369e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314718e-1f;
  } else {
    p = splat(1.3264727e-3f);
    p = p * f + 9.6715130e-3f;
    p = p * f + 5.5507336e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.9314700e-1f;
  }
  p = p * f + 1.0f;
  VecI32 n;
  std::memcpy(&n, &shifted, sizeof n);
  VecI32 bits;
  std::memcpy(&bits, &p, sizeof bits);
  bits += n << Number<float>::mantissa;
  VecF result;
  std::memcpy(&result, &bits, sizeof result);
  return x < floor ? VecF{} : result;
}

template <bool fine = false>
LAVAGNA_INLINE VecD exp2(VecD x) {
  const VecD floor = splat<double>(Number<double>::lowest_exponent);
  const VecD clamped = max<double>(x, floor);
  const VecD shifted = clamped + Number<double>::round;
  const VecD f = (clamped - (shifted - Number<double>::round)) * 0.693147180559945309417;
  VecD p = splat(1.0 / 6227020800);
  constexpr double inverse_factorials[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                           1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,     1.0 / 6,
                                           0.5,             1.0,            1.0};
  LAVAGNA_UNROLL
  for (int i = 0; i < 13; ++i) p = p * f + inverse_factorials[i];
  VecI64 n;
  std::memcpy(&n, &shifted, sizeof n);
  VecI64 bits;
  std::memcpy(&bits, &p, sizeof bits);
  bits += n << Number<double>::mantissa;
  VecD result;
  std::memcpy(&result, &bits, sizeof result);
  return x < floor ? VecD{} : result;
}

template <class T>
constexpr T log2_e = T(1.44269504088896340735992468100189214);

// e^x.
template <class T>
LAVAGNA_INLINE Vec<T> exp(Vec<T> x) {
  return exp2<true>(x * log2_e<T>);
}

// 1 / (1 + e^−x), without overflow.
template <class T>
LAVAGNA_INLINE Vec<T> sigmoid(Vec<T> x) {
  const Vec<T> small = exp<T>(x < 0 ? x : -x);  // e^−|x|
  const Vec<T> positive = T(1) / (T(1) + small);
  return x < 0 ? small * positive : positive;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
