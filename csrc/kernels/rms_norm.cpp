// RMSNorm over the channels of a head with the gate of a mixer's output: one pass that reads, one that writes, where
// separate operators make five or more. docs/performance/rms_norm.md explains it.
#include "rms_norm.h"

#include "../core/vec.h"

#include <cmath>

namespace lavagna::LAVAGNA_ISA {
namespace {

// Call `each(c, load, store)` for the channels c of a row, vector by vector, the last one in part.
template <class T, class Each>
LAVAGNA_INLINE void for_vectors(std::int64_t size, Each each) {
  std::int64_t c = 0;
  for (; c + lanes<T> <= size; c += lanes<T>)
    each(
        c, [](const T* from) { return load(from); }, [](T* to, Vec<T> v) { store(to, v); });
  if (c < size) {
    const int rest = static_cast<int>(size - c);
    each(
        c, [rest](const T* from) { return load_part(from, rest); },
        [rest](T* to, Vec<T> v) { store_part(to, v, rest); });
  }
}

template <class T, Gate act>
LAVAGNA_INLINE Vec<T> activation(Vec<T> gate) {
  if constexpr (act == Gate::silu) return gate * sigmoid<T>(gate);
  return sigmoid<T>(gate);
}

// The activation and its derivative.
template <class T, Gate act>
LAVAGNA_INLINE Vec<T> activation(Vec<T> gate, Vec<T>& slope) {
  const Vec<T> s = sigmoid<T>(gate);
  if constexpr (act == Gate::silu) {
    slope = s * (T(1) + gate * (T(1) - s));
    return gate * s;
  }
  slope = s * (T(1) - s);
  return s;
}

template <class T, Gate act>
LAVAGNA_INLINE T one_over_rms(const RmsNorm<T>& a, const T* x, const T* gate) {
  Vec<T> squares{};
  for_vectors<T>(a.size, [&](std::int64_t c, auto get, auto) {
    Vec<T> u = get(x + c);
    if constexpr (act != Gate::none)
      if (a.gate_first) u *= activation<T, act>(get(gate + c));
    squares += u * u;
  });
  return T(1) / std::sqrt(sum<T>(squares) / static_cast<T>(a.size) + a.eps);
}

template <class T, Gate act>
void forward_row(const RmsNorm<T>& a, const T* x, const T* gate, const T* weight, T* y) {
  const Vec<T> scale = splat(one_over_rms<T, act>(a, x, gate));
  for_vectors<T>(a.size, [&](std::int64_t c, auto get, auto put) {
    Vec<T> v = get(x + c) * scale * get(weight + c);
    if constexpr (act != Gate::none) v *= activation<T, act>(get(gate + c));
    put(y + c, v);
  });
}

// With n = u / rms(u) and dn = w ∘ dy (∘ act where the gate comes after):
//     du = (dn − n · mean(dn ∘ n)) / rms(u)
template <class T, Gate act>
void backward_row(const RmsNorm<T>& a, const T* x, const T* gate, const T* weight, const T* dy, T* dx, T* d_gate,
                  T* d_weight) {
  const Vec<T> scale = splat(one_over_rms<T, act>(a, x, gate));
  Vec<T> products{};
  for_vectors<T>(a.size, [&](std::int64_t c, auto get, auto put) {
    Vec<T> n = get(x + c) * scale;
    Vec<T> gradient = get(dy + c);
    if constexpr (act != Gate::none) {
      const Vec<T> factor = activation<T, act>(get(gate + c));
      if (a.gate_first)
        n *= factor;
      else
        gradient *= factor;
    }
    put(d_weight + c, get(d_weight + c) + gradient * n);
    products += gradient * get(weight + c) * n;
  });
  const Vec<T> mean = splat(sum<T>(products) / static_cast<T>(a.size));
  for_vectors<T>(a.size, [&](std::int64_t c, auto get, auto put) {
    const Vec<T> input = get(x + c);
    const Vec<T> w = get(weight + c);
    const Vec<T> gradient = get(dy + c);
    if constexpr (act == Gate::none) {
      put(dx + c, scale * (gradient * w - input * scale * mean));
    } else {
      Vec<T> slope;
      const Vec<T> factor = activation<T, act>(get(gate + c), slope);
      if (a.gate_first) {
        const Vec<T> du = scale * (gradient * w - input * factor * scale * mean);
        put(dx + c, du * factor);
        put(d_gate + c, du * input * slope);
      } else {
        const Vec<T> n = input * scale;
        put(dx + c, scale * (gradient * factor * w - n * mean));
        put(d_gate + c, gradient * n * w * slope);
      }
    }
  });
}

template <class T, bool back, Gate act>
void span(const RmsNorm<T>& a, std::int64_t task) {
  const std::int64_t begin = a.tokens * task / rms_norm_tasks;
  const std::int64_t end = a.tokens * (task + 1) / rms_norm_tasks;
  const std::int64_t row = a.heads * a.size;
  const std::int64_t weight_step = a.weight_per_head ? a.size : 0;
  T* partial = nullptr;
  if constexpr (back) {
    const std::int64_t numbers = a.weight_per_head ? row : a.size;
    partial = a.partials + task * numbers;
    for (std::int64_t i = 0; i < numbers; ++i) partial[i] = 0;
  }
  for (std::int64_t t = begin; t < end; ++t)
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const std::int64_t at = h * a.size;
      const T* x = a.x + t * a.x_row + at;
      const T* gate = act == Gate::none ? nullptr : a.gate + t * a.gate_row + at;
      const T* weight = a.weight + h * weight_step;
      if constexpr (back)
        backward_row<T, act>(a, x, gate, weight, a.dy + t * a.dy_row + at, a.dx + t * row + at,
                             act == Gate::none ? nullptr : a.d_gate + t * row + at, partial + h * weight_step);
      else
        forward_row<T, act>(a, x, gate, weight, a.y + t * row + at);
    }
}

template <class T, bool back>
void run(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const RmsNorm<T>& a = *static_cast<const RmsNorm<T>*>(arguments);
  constexpr void (*by_gate[])(const RmsNorm<T>&, std::int64_t) = {span<T, back, Gate::none>, span<T, back, Gate::silu>,
                                                                  span<T, back, Gate::sigmoid>};
  for (std::int64_t task = begin; task < end; ++task) by_gate[static_cast<int>(a.act)](a, task);
}

}  // namespace

const RmsNormKernels rms_norm = {{run<float, false>, run<double, false>}, {run<float, true>, run<double, true>}};

}  // namespace lavagna::LAVAGNA_ISA
