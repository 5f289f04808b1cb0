// Sums, products and changes of format of a few numbers. docs/performance/decode.md says what for.
#include "elementwise.h"

#include "../core/half.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

LAVAGNA_INLINE VecF read(const float* from) { return load(from); }

LAVAGNA_INLINE VecF read(const Half* from) {
  VecF v;
  for (int i = 0; i < lanes<float>; ++i) v[i] = widen(from[i]);
  return v;
}

template <class From, class To, class Function>
LAVAGNA_INLINE void each(std::int64_t count, const From* a, const From* b, To* y, Function function) {
  std::int64_t i = 0;
  for (; i + lanes<float> <= count; i += lanes<float>) narrow(function(read(a + i), read(b + i)), y + i);
  if (i == count) return;
  From last_a[lanes<float>] = {}, last_b[lanes<float>] = {};
  To last_y[lanes<float>];
  const std::size_t rest = count - i;
  std::memcpy(last_a, a + i, rest * sizeof(From));
  std::memcpy(last_b, b + i, rest * sizeof(From));
  narrow(function(read(last_a), read(last_b)), last_y);
  std::memcpy(y + i, last_y, rest * sizeof(To));
}

template <class From, class To>
void convert(std::int64_t count, const void* a, void* y) {
  const From* from = static_cast<const From*>(a);
  each(count, from, from, static_cast<To*>(y), [](VecF x, VecF) LAVAGNA_LAMBDA { return x; });
}

template <class T>
void add(std::int64_t count, const void* a, const void* b, void* y) {
  each(count, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y),
       [](VecF x, VecF z) LAVAGNA_LAMBDA { return x + z; });
}

template <class T>
void multiply(std::int64_t count, const void* a, const void* b, void* y) {
  each(count, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y),
       [](VecF x, VecF z) LAVAGNA_LAMBDA { return x * z; });
}

}  // namespace

const ElementwiseKernels elementwise = {
    convert<Half, float>, convert<float, Half>, {add<float>, add<Half>}, {multiply<float>, multiply<Half>}};

}  // namespace lavagna::LAVAGNA_ISA
