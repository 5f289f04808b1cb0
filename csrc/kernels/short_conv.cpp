// A short causal convolution along time, every channel for itself. docs/performance.md explains it.
#include "short_conv.h"

#include "../core/vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Up to `lanes` channels beginning at one of them; `count` is known to the compiler where the vector is whole.
template <class T, bool whole>
struct Channels {
  std::int64_t first;
  int count;

  LAVAGNA_INLINE Vec<T> get(const T* row) const {
    if constexpr (whole) return load(row + first);
    return load_part(row + first, count);
  }
  LAVAGNA_INLINE void put(T* row, Vec<T> v) const {
    if constexpr (whole) return store(row + first, v);
    store_part(row + first, v, count);
  }
  // weight[:, w] of a [D, W] matrix.
  LAVAGNA_INLINE Vec<T> column(const T* matrix, std::int64_t width, int w) const {
    T values[lanes<T>] = {};
    for (int i = 0; i < count; ++i) values[i] = matrix[(first + i) * width + w];
    return load(values);
  }
  LAVAGNA_INLINE void put_column(T* matrix, std::int64_t width, int w, Vec<T> v) const {
    T values[lanes<T>];
    store(values, v);
    for (int i = 0; i < count; ++i) matrix[(first + i) * width + w] = values[i];
  }
};

// The inputs before and inside one sequence: row t ≥ −(W − 1).
template <class T>
struct Inputs {
  const T* x;
  std::int64_t x_row;
  const T* state;
  std::int64_t channels;
  std::int64_t width;

  LAVAGNA_INLINE const T* row(std::int64_t t) const {
    return t >= 0 ? x + t * x_row : state + (t + width - 1) * channels;
  }
};

template <class T>
LAVAGNA_INLINE Inputs<T> inputs(const ShortConv<T>& a, std::int64_t m) {
  return {a.x + a.sequences.begin(m) * a.x_row, a.x_row, a.state + m * (a.width - 1) * a.channels, a.channels, a.width};
}

template <class T, int width, bool whole>
void forward_vector(const ShortConv<T>& a, std::int64_t m, Channels<T, whole> channels) {
  Vec<T> weight[width];
  for (int w = 0; w < width; ++w) weight[w] = channels.column(a.weight, width, w);
  const Vec<T> bias = a.bias != nullptr ? channels.get(a.bias) : Vec<T>{};
  const Inputs<T> in = inputs(a, m);
  const std::int64_t tokens = a.sequences.length(m);
  T* y = a.y + a.sequences.begin(m) * a.channels;

  // The last W inputs, the current one last; they are held here so that the tail may overwrite the state.
  Vec<T> window[width];
  LAVAGNA_UNROLL
  for (int w = 1; w < width; ++w) window[w] = channels.get(in.row(w - width));
  for (std::int64_t t = 0; t < tokens; ++t) {
    LAVAGNA_UNROLL
    for (int w = 1; w < width; ++w) window[w - 1] = window[w];
    window[width - 1] = channels.get(in.x + t * in.x_row);
    Vec<T> sum = bias;
    LAVAGNA_UNROLL
    for (int w = 0; w < width; ++w) sum += weight[w] * window[w];
    channels.put(y + t * a.channels, a.silu ? sum * sigmoid<T>(sum) : sum);
  }
  T* tail = a.tail + m * (width - 1) * a.channels;
  LAVAGNA_UNROLL
  for (int w = 1; w < width; ++w) channels.put(tail + (w - 1) * a.channels, window[w]);
}

// d(pre)_t is made from the window of inputs, which it shares with the gradient of the weights; the W gradients that
// token t − W + 1 waits for are then complete.
template <class T, int width, bool whole>
void backward_vector(const ShortConv<T>& a, std::int64_t m, Channels<T, whole> channels, const Vec<T>* weight,
                     Vec<T> bias, Vec<T>* d_weight, Vec<T>& d_bias) {
  const Inputs<T> in = inputs(a, m);
  const std::int64_t tokens = a.sequences.length(m);
  const std::int64_t begin = a.sequences.begin(m);
  const T* d_tail = a.d_tail + m * (width - 1) * a.channels;
  T* d_state = a.d_state + m * (width - 1) * a.channels;

  Vec<T> window[width];
  Vec<T> pending[width];  // gradients of the inputs of the window
  LAVAGNA_UNROLL
  for (int w = 1; w < width; ++w) {
    window[w] = channels.get(in.row(w - width));
    pending[w] = Vec<T>{};
  }
  // Where row t of the inputs lies among the gradients, and whether it is part of the tail.
  const auto finish = [&](std::int64_t t, Vec<T> gradient) {
    const std::int64_t in_tail = t - (tokens - width + 1);
    if (in_tail >= 0) gradient += channels.get(d_tail + in_tail * a.channels);
    channels.put(t >= 0 ? a.dx + (begin + t) * a.channels : d_state + (t + width - 1) * a.channels, gradient);
  };
  for (std::int64_t t = 0; t < tokens; ++t) {
    LAVAGNA_UNROLL
    for (int w = 1; w < width; ++w) {
      window[w - 1] = window[w];
      pending[w - 1] = pending[w];
    }
    window[width - 1] = channels.get(in.x + t * in.x_row);
    pending[width - 1] = Vec<T>{};
    Vec<T> gradient = channels.get(a.dy + (begin + t) * a.dy_row);
    if (a.silu) {
      Vec<T> sum = bias;
      LAVAGNA_UNROLL
      for (int w = 0; w < width; ++w) sum += weight[w] * window[w];
      const Vec<T> s = sigmoid<T>(sum);
      gradient *= s * (T(1) + sum * (T(1) - s));
    }
    d_bias += gradient;
    LAVAGNA_UNROLL
    for (int w = 0; w < width; ++w) {
      d_weight[w] += gradient * window[w];
      pending[w] += gradient * weight[w];
    }
    finish(t - width + 1, pending[0]);
  }
  for (int w = 1; w < width; ++w) finish(tokens - width + w, pending[w]);
}

template <class T, int width, bool whole>
void forward_channels(const ShortConv<T>& a, Channels<T, whole> channels) {
  for (std::int64_t m = 0; m < a.sequences.count; ++m) forward_vector<T, width>(a, m, channels);
}

template <class T, int width, bool whole>
void backward_channels(const ShortConv<T>& a, Channels<T, whole> channels) {
  Vec<T> weight[width];
  Vec<T> d_weight[width] = {};
  for (int w = 0; w < width; ++w) weight[w] = channels.column(a.weight, width, w);
  const Vec<T> bias = a.bias != nullptr ? channels.get(a.bias) : Vec<T>{};
  Vec<T> d_bias{};
  for (std::int64_t m = 0; m < a.sequences.count; ++m)
    backward_vector<T, width>(a, m, channels, weight, bias, d_weight, d_bias);
  for (int w = 0; w < width; ++w) channels.put_column(a.d_weight, width, w, d_weight[w]);
  if (a.d_bias != nullptr) channels.put(a.d_bias, d_bias);
}

template <class T, int width, bool back, bool whole>
LAVAGNA_INLINE void one_vector(const ShortConv<T>& a, Channels<T, whole> channels) {
  if constexpr (back)
    backward_channels<T, width>(a, channels);
  else
    forward_channels<T, width>(a, channels);
}

template <class T, int width, bool back>
void tasks(const ShortConv<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t last = end * short_conv_block < a.channels ? end * short_conv_block : a.channels;
  for (std::int64_t d = begin * short_conv_block; d < last; d += lanes<T>) {
    if (d + lanes<T> <= last)
      one_vector<T, width, back>(a, Channels<T, true>{d, lanes<T>});
    else
      one_vector<T, width, back>(a, Channels<T, false>{d, static_cast<int>(last - d)});
  }
}

template <class T, bool back>
void run(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const ShortConv<T>& a = *static_cast<const ShortConv<T>*>(arguments);
  constexpr void (*by_width[])(const ShortConv<T>&, std::int64_t, std::int64_t) = {
      tasks<T, 1, back>, tasks<T, 2, back>, tasks<T, 3, back>, tasks<T, 4, back>,
      tasks<T, 5, back>, tasks<T, 6, back>, tasks<T, 7, back>, tasks<T, 8, back>};
  by_width[a.width - 1](a, begin, end);
}

}  // namespace

const ShortConvKernels short_conv = {{run<float, false>, run<double, false>}, {run<float, true>, run<double, true>}};

}  // namespace lavagna::LAVAGNA_ISA
