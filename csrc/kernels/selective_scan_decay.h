// The exponential of the selective scan: the decays, one for every token, channel and state.
#pragma once

#include "../core/vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Powers: a function object, so that what it needs stays in registers.
//
// `decay(x)` is 2^x, of several vectors side by side: the chain of operations of one is as long as what the processor can
// look ahead, and one after the other leaves it waiting. `decay.small(x)` is e^x for x ≤ 0, as exact relative to itself
// where it is next to nothing as where it is not.
template <class T>
struct Decay {
  template <int many>
  LAVAGNA_INLINE void operator()(Vec<T> (&x)[many]) const {
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) x[i] = exp2<true>(min<T>(splat<T>(Number<T>::bias), x[i]));
  }
  LAVAGNA_INLINE Vec<T> small(Vec<T> x) const { return exact_exp<T>(x); }
};

#if LAVAGNA_VECTOR_BYTES == 64
alignas(64) constexpr float powers[16] = {1.0f,         1.044273782f, 1.090507733f, 1.138788635f,
                                          1.189207115f, 1.241857812f, 1.296839555f, 1.354255547f,
                                          1.414213562f, 1.476826146f, 1.542210825f, 1.610490332f,
                                          1.681792831f, 1.756252160f, 1.834008086f, 1.915206561f};

// x = k/16 + f: 2^(k mod 16 / 16) from a table in a register, 2^f by a polynomial of degree 3 that begins with
// 1 + f ln 2 (1e-8, with rounding 1.1e-7), and 2^floor(k/16) by an instruction that finds its own way to 0 and to
// infinity. Four operations of the units that multiply, which are what limits us, where the polynomial of degree 6 alone
// has six.
template <>
struct Decay<float> {
  static constexpr float round = Number<float>::round / 16;
  __m512 table = _mm512_load_ps(powers);

  // (1 + rest) 2^n with what follows the point of n looked up by the last digits of n + round. The forms with a mask, for
  // the compiler warns of what the others leave undefined.
  LAVAGNA_INLINE VecF power(VecF shifted, VecF n, VecF rest) const {
    const VecF looked_up = (VecF)_mm512_maskz_permutexvar_ps(__mmask16(-1), (__m512i)shifted, table);
    return (VecF)_mm512_maskz_scalef_ps(__mmask16(-1), (__m512)(looked_up * rest + looked_up), (__m512)n);
  }

  template <int many>
  LAVAGNA_INLINE void operator()(VecF (&x)[many]) const {
    VecF shifted[many], n[many], rest[many];
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) {
      asm("" : "+v"(x[i]));  // else the product that made x is done twice, as part of each sum below
      shifted[i] = x[i] + round;
    }
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) n[i] = shifted[i] - round;
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) {
      const VecF f = x[i] - n[i];
      rest[i] = f * ((0.05550417f * f + 0.24022845f) * f + 0.69314718f);
    }
    LAVAGNA_UNROLL
    for (int i = 0; i < many; ++i) x[i] = power(shifted[i], n[i], rest[i]);
  }

  // The same with n ln 2 taken from x in two parts, the first of which has so few digits that its product is exact.
  LAVAGNA_INLINE VecF small(VecF x) const {
    x = max<float>(splat(-150.0f), x);
    const VecF shifted = x * log2_e<float> + round;
    const VecF n = shifted - round;
    const VecF f = (x - n * 0.693359375f) - n * -2.12194440054690583e-4f;
    return power(shifted, n, f * ((0.16666667f * f + 0.5f) * f + 1.0f));
  }
};
#endif

// A in exponents: bounded, so that no product with it is infinite.
template <class T>
LAVAGNA_INLINE Vec<T> bounded(Vec<T> A) {
  return max<T>(splat<T>(T(-1e18)), A);
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
