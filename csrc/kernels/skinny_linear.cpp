// Products of a few rows with a matrix that is read from memory once. docs/performance/decode.md explains it.
#include "skinny_linear.h"

#include "../core/half.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// A step of a dot product: the numbers of W in one vector's memory, as `parts` vectors of float32.
//
// Of two bfloat16 in 32 bits, the upper one is a float32 but for digits that must go, the lower one a shift away. So a
// vector gives its even numbers and its odd ones, and x is spread in this order.
template <class T>
struct Step;

template <>
struct Step<float> {
  static constexpr int parts = 1;
  static LAVAGNA_INLINE VecF part(VecI32 raw, int) {
    VecF v;
    std::memcpy(&v, &raw, sizeof v);
    return v;
  }
};

template <>
struct Step<Half> {
  static constexpr int parts = 2;
  static LAVAGNA_INLINE VecF part(VecI32 raw, int p) {
    const VecI32 bits = p == 0 ? raw << 16 : raw & static_cast<std::int32_t>(0xffff0000);
    VecF v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }
};

template <class T>
constexpr int step = LAVAGNA_VECTOR_BYTES / sizeof(T);

// Where the last step of a row of W begins, if the row is no multiple of steps, and what it must not count again: it
// ends with the row, and begins among numbers that were counted.
template <class T>
struct LastStep {
  std::int64_t first;  // of its numbers
  int count;           // numbers to read; a step unless the row is shorter
  VecI32 counts;       // bits of those that count

  explicit LastStep(std::int64_t inputs) {
    const std::int64_t done = inputs / step<T> * step<T>;
    first = inputs > step<T> ? inputs - step<T> : 0;
    count = static_cast<int>(inputs - first);
    T bits[step<T>];
    for (int i = 0; i < step<T>; ++i) std::memset(bits + i, first + i >= done ? 0xff : 0, sizeof(T));
    std::memcpy(&counts, bits, sizeof counts);
  }

  LAVAGNA_INLINE VecI32 read(const T* row) const {
    if (count == step<T>) {
      VecI32 raw;
      std::memcpy(&raw, row + first, sizeof raw);
      return raw;
    }
    VecI32 raw{};
    std::memcpy(&raw, row, count * sizeof(T));
    return raw;
  }
};

template <class T>
void spread(const SkinnyLinear& a) {
  constexpr int parts = Step<T>::parts;
  const std::int64_t row = skinny_linear_spread(a.inputs);
  const std::int64_t done = a.inputs / step<T> * step<T>;
  const std::int64_t last = LastStep<T>(a.inputs).first;
  for (std::int64_t m = 0; m < a.rows; ++m) {
    const T* x = static_cast<const T*>(a.x) + m * a.x_row;
    float* to = a.spread + m * row;
    for (std::int64_t begin = 0; begin < a.inputs; begin += step<T>) {
      const std::int64_t from = begin < done ? begin : last;
      for (int i = 0; i < step<T>; ++i) {
        const bool counts = from + i >= begin && from + i < a.inputs;
        to[begin + i % parts * lanes<float> + i / parts] = counts ? widen(x[from + i]) : 0.0f;
      }
    }
  }
}

// Rows of W that are read at once, far apart, so that several pages are looked up, and several runs of memory fetched
// ahead, at the same time.
constexpr int streams = 4;

// Outputs o, o + apart, o + 2·apart, ... (`count` of them).
template <class T, int rows, int count>
LAVAGNA_INLINE void outputs(const SkinnyLinear& a, const LastStep<T>& last, std::int64_t o, std::int64_t apart) {
  constexpr int parts = Step<T>::parts;
  const std::int64_t row = skinny_linear_spread(a.inputs);
  const T* weight = static_cast<const T*>(a.weight) + o * a.inputs;
  VecF total[count][rows] = {};
  const auto add = [&](int s, std::int64_t i, VecI32 raw) {
    LAVAGNA_UNROLL
    for (int p = 0; p < parts; ++p) {
      const VecF w = Step<T>::part(raw, p);
      LAVAGNA_UNROLL
      for (int m = 0; m < rows; ++m) total[s][m] += w * load(a.spread + m * row + i + p * lanes<float>);
    }
  };
  std::int64_t i = 0;
  for (; i + step<T> <= a.inputs; i += step<T>) {
    LAVAGNA_UNROLL
    for (int s = 0; s < count; ++s) {
      VecI32 raw;
      std::memcpy(&raw, weight + s * apart * a.inputs + i, sizeof raw);
      add(s, i, raw);
    }
  }
  if (i < a.inputs) {
    LAVAGNA_UNROLL
    for (int s = 0; s < count; ++s)
      add(s, i, last.read(weight + s * apart * a.inputs) & last.counts);
  }
  // As many sums at a time as a vector has lanes.
  LAVAGNA_UNROLL
  for (int first = 0; first < count * rows; first += lanes<float>) {
    VecF some[lanes<float>] = {};
    LAVAGNA_UNROLL
    for (int j = 0; j < lanes<float>; ++j)
      if (first + j < count * rows) some[j] = total[(first + j) / rows][(first + j) % rows];
    float bias[lanes<float>] = {};
    if (a.bias != nullptr)
      for (int j = 0; j < lanes<float> && first + j < count * rows; ++j)
        bias[j] = widen(static_cast<const T*>(a.bias)[o + (first + j) / rows * apart]);
    T results[lanes<float>];
    narrow(sums<float>(some) + load(bias), results);
    T* y = static_cast<T*>(a.y) + o;
    LAVAGNA_UNROLL
    for (int j = 0; j < lanes<float>; ++j)
      if (first + j < count * rows) y[(first + j) % rows * a.outputs + (first + j) / rows * apart] = results[j];
  }
}

template <class T, int rows>
void tasks(const SkinnyLinear& a, std::int64_t begin, std::int64_t end) {
  const LastStep<T> last(a.inputs);
  const std::int64_t apart = (end - begin) / streams;
  for (std::int64_t o = begin; o < begin + apart; ++o) outputs<T, rows, streams>(a, last, o, apart);
  for (std::int64_t o = begin + streams * apart; o < end; ++o) outputs<T, rows, 1>(a, last, o, 0);
}

template <class T>
void run(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const SkinnyLinear& a = *static_cast<const SkinnyLinear*>(arguments);
  constexpr void (*by_rows[])(const SkinnyLinear&, std::int64_t, std::int64_t) = {
      tasks<T, 1>, tasks<T, 2>, tasks<T, 3>, tasks<T, 4>};
  by_rows[a.rows - 1](a, begin, end);
}

}  // namespace

const SkinnyLinearKernels skinny_linear = {{spread<float>, spread<Half>}, {run<float>, run<Half>}};

}  // namespace lavagna::LAVAGNA_ISA
