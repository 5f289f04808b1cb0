// bfloat16, the upper half of a float32. For files that are compiled once per instruction set, as vec.h.
#pragma once

#include "vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

using Half = std::uint16_t;

LAVAGNA_INLINE float widen(float x) { return x; }

LAVAGNA_INLINE float widen(Half x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

LAVAGNA_INLINE void narrow(VecF x, float* to) { store(to, x); }

// To the nearest, ties to even; a NaN stays one.
LAVAGNA_INLINE void narrow(VecF x, Half* to) {
  VecI32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x7fff + (bits >> 16 & 1);
  bits = x == x ? bits >> 16 : bits - bits + 0x7fc0;
  for (int i = 0; i < lanes<float>; ++i) to[i] = static_cast<Half>(bits[i]);
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
