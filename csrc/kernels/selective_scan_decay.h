// The exponential of the selective scan: the decays, one for every token, channel and state.
#pragma once

#include "../core/vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// 2^x for x ≤ 0 and beyond: a function object, so that what it needs stays in registers.
template <class T>
struct Decay {
  LAVAGNA_INLINE Vec<T> operator()(Vec<T> x) const { return exp2<true>(x); }
};

#if LAVAGNA_VECTOR_BYTES == 64
alignas(64) constexpr float powers[16] = {1.0f,         1.044273782f, 1.090507733f, 1.138788635f,
                                          1.189207115f, 1.241857812f, 1.296839555f, 1.354255547f,
                                          1.414213562f, 1.476826146f, 1.542210825f, 1.610490332f,
                                          1.681792831f, 1.756252160f, 1.834008086f, 1.915206561f};

// x = k/16 + f: 2^(k mod 16 / 16) from a table in a register, 2^f by a polynomial of degree 3 that begins with
// 1 + f ln 2 (1e-8, with rounding 1.1e-7), and 2^floor(k/16) by an instruction that finds its own way to 0. Four
// operations of the units that multiply, which are what limits us, where the polynomial of degree 6 alone has six.
template <>
struct Decay<float> {
  __m512 table = _mm512_load_ps(powers);

  LAVAGNA_INLINE VecF operator()(VecF x) const {
    asm("" : "+v"(x));  // else the product that made x is done twice, as part of each sum below
    constexpr float round = Number<float>::round / 16;
    const VecF shifted = x + round;
    const VecF n = shifted - round;
    const VecF f = x - n;
    // The forms with a mask, for the compiler warns of what the others leave undefined.
    const VecF power = (VecF)_mm512_maskz_permutexvar_ps(__mmask16(-1), (__m512i)shifted, table);
    const VecF rest = f * ((0.05550417f * f + 0.24022845f) * f + 0.69314718f);
    return (VecF)_mm512_maskz_scalef_ps(__mmask16(-1), (__m512)(power * rest + power), (__m512)n);
  }
};
#endif

// A in exponents: bounded, so that no product with it is infinite.
template <class T>
LAVAGNA_INLINE Vec<T> bounded(Vec<T> A) {
  return max<T>(A, splat<T>(T(-1e18)));
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
