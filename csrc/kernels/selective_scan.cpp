// The selective scan: channels in the lanes of vectors, their states in registers, time innermost, a few tokens (a tile)
// at a time. docs/performance/selective_scan.md explains it.
#include "selective_scan.h"

#include <type_traits>

#include "../core/vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

constexpr std::int64_t tile = selective_scan_tile;

// Numbers from one vector of channels to the next where each has a tile of tokens: one token more than a tile, so that
// the same token of neighbours falls into different sets of the cache.
template <class T>
constexpr std::int64_t pitch = (tile + 1) * lanes<T>;

// 2^x for x ≤ 0 and beyond: a function object, so that what it needs stays in registers.
template <class T>
struct Decay {
  LAVAGNA_INLINE Vec<T> operator()(Vec<T> x) const { return exp2<true>(x); }
};

#if LAVAGNA_VECTOR_BYTES == 64
alignas(64) constexpr float powers[32] = {
    1.0f,        1.021897149f, 1.044273782f, 1.067140401f, 1.090507733f, 1.114386743f, 1.138788635f, 1.163724859f,
    1.189207115f, 1.215247360f, 1.241857812f, 1.269050957f, 1.296839555f, 1.325236643f, 1.354255547f, 1.383909882f,
    1.414213562f, 1.445180807f, 1.476826146f, 1.509164428f, 1.542210825f, 1.575980845f, 1.610490332f, 1.645755478f,
    1.681792831f, 1.718619298f, 1.756252160f, 1.794709074f, 1.834008086f, 1.874167614f, 1.915206561f, 1.957144124f};

// x = k/32 + f: 2^(k mod 32 / 32) from a table in two registers, 2^f by a polynomial of degree 2 that is minimax among
// those that are 1 at 0 (5e-8, with rounding 1.5e-7), and 2^floor(k/32) by an instruction that has its own way to 0.
// Three operations on the units that multiply, where the polynomial of degree 5 has five, and they are what limits us.
template <>
struct Decay<float> {
  __m512 low = _mm512_load_ps(powers);
  __m512 high = _mm512_load_ps(powers + 16);

  LAVAGNA_INLINE VecF operator()(VecF x) const {
    asm("" : "+v"(x));  // else the product that made x is done twice, as part of each sum below
    constexpr float round = Number<float>::round / 32;
    const VecF shifted = x + round;
    const VecF n = shifted - round;
    const VecF f = x - n;
    const VecF power = (VecF)_mm512_permutex2var_ps(low, (__m512i)shifted, high);
    const VecF rest = f * ((0.05550417f * f + 0.24022845f) * f + 0.69314718f);
    // The form with a mask, for the compiler warns of what the other leaves undefined.
    return (VecF)_mm512_maskz_scalef_ps(__mmask16(-1), (__m512)(power * rest + power), (__m512)n);
  }
};
#endif

// A in exponents: bounded, so that no product with it is infinite.
template <class T>
LAVAGNA_INLINE Vec<T> bounded(Vec<T> A) {
  return max<T>(A, splat<T>(T(-1e18)));
}

// Some channels of one group.
struct Block {
  std::int64_t group;
  std::int64_t first;  // among all channels
  std::int64_t width;
};

template <class T>
LAVAGNA_INLINE std::int64_t vectors(const Block& block) {
  return (block.width + lanes<T> - 1) / lanes<T>;
}

// Vector v of a row that begins with the block's first channel.
template <class T>
LAVAGNA_INLINE Vec<T> get(const T* row, std::int64_t v, std::int64_t width) {
  const std::int64_t left = width - v * lanes<T>;
  return left >= lanes<T> ? load(row + v * lanes<T>) : load_part(row + v * lanes<T>, static_cast<int>(left));
}

template <class T>
LAVAGNA_INLINE void put(T* row, std::int64_t v, std::int64_t width, Vec<T> value) {
  const std::int64_t left = width - v * lanes<T>;
  if (left >= lanes<T>) return store(row + v * lanes<T>, value);
  store_part(row + v * lanes<T>, value, static_cast<int>(left));
}

constexpr std::int64_t min_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Up to as many channels as a vector has lanes.
template <class T>
struct Channels {
  std::int64_t first;
  int count;

  Channels(const Block& block, std::int64_t v)
      : first(block.first + v * lanes<T>), count(static_cast<int>(min_of(block.width - v * lanes<T>, lanes<T>))) {}

  LAVAGNA_INLINE Vec<T> get(const T* row) const {
    return count == lanes<T> ? load(row + first) : load_part(row + first, count);
  }
  LAVAGNA_INLINE void put(T* row, Vec<T> v) const {
    if (count == lanes<T>) return store(row + first, v);
    store_part(row + first, v, count);
  }
  LAVAGNA_INLINE Vec<T> get_or_zero(const T* row) const { return row == nullptr ? Vec<T>{} : get(row); }
};

// Rows of an input from one token on.
template <class T>
struct From {
  const T* first;
  std::int64_t step;

  From(const Rows<T>& rows, std::int64_t row)
      : first(rows.data == nullptr ? nullptr : rows.data + row * rows.row), step(rows.row) {}

  LAVAGNA_INLINE const T* at(std::int64_t t) const { return first + t * step; }
};

// Δ of each token, before and after its limits.
template <class T>
struct Step {
  explicit Step(const SelectiveScan<T>& a, const Channels<T>& channels)
      : bias_(channels.get_or_zero(a.dt_bias)), low_(splat(a.low)), high_(splat(a.high)), softplus_(a.softplus) {}

  LAVAGNA_INLINE Vec<T> raw(Vec<T> dt) const { return dt + bias_; }
  LAVAGNA_INLINE Vec<T> unlimited(Vec<T> raw) const { return softplus_ ? softplus<T>(raw) : raw; }
  LAVAGNA_INLINE Vec<T> limited(Vec<T> delta) const { return min<T>(high_, max<T>(low_, delta)); }
  // The derivative of the three with respect to dt.
  LAVAGNA_INLINE Vec<T> slope(Vec<T> raw, Vec<T> unlimited) const {
    const Vec<T> steep = softplus_ ? sigmoid<T>(raw) : splat(T(1));
    return (unlimited < low_) | (unlimited > high_) ? Vec<T>{} : steep;
  }

 private:
  Vec<T> bias_, low_, high_;
  bool softplus_;
};

// [width, N] as [vectors, padded N, lanes], zeros where there is nothing: square by square.
template <class T>
void turn_in(const T* from, std::int64_t width, std::int64_t states, T* to) {
  const std::int64_t padded = selective_scan_padded(states);
  for (std::int64_t d = 0; d < width; d += lanes<T>, to += padded * lanes<T>)
    for (std::int64_t n = 0; n < padded; n += lanes<T>) {
      Vec<T> square[lanes<T>] = {};
      for (std::int64_t i = 0; i < lanes<T> && d + i < width && n < states; ++i)
        square[i] = get(from + (d + i) * states, n / lanes<T>, states);
      turn<T>(square);
      for (std::int64_t j = 0; j < lanes<T> && n + j < padded; ++j) store(to + (n + j) * lanes<T>, square[j]);
    }
}

// The way back; `add` adds to what is there.
template <bool add, class T>
void turn_out(const T* from, std::int64_t width, std::int64_t states, T* to) {
  const std::int64_t padded = selective_scan_padded(states);
  for (std::int64_t d = 0; d < width; d += lanes<T>, from += padded * lanes<T>)
    for (std::int64_t n = 0; n < states; n += lanes<T>) {
      Vec<T> square[lanes<T>] = {};
      for (std::int64_t j = 0; j < lanes<T> && n + j < padded; ++j) square[j] = load(from + (n + j) * lanes<T>);
      turn<T>(square);
      for (std::int64_t i = 0; i < lanes<T> && d + i < width; ++i) {
        T* const row = to + (d + i) * states;
        put(row, n / lanes<T>, states, add ? get(row, n / lanes<T>, states) + square[i] : square[i]);
      }
    }
}

// Hands out parts of a thread's scratch.
template <class T>
class Shelf {
 public:
  explicit Shelf(T* memory) : next_(memory) {}
  T* take(std::int64_t numbers) {
    T* const part = next_;
    next_ += numbers;
    return part;
  }

 private:
  T* next_;
};

// B or C of a block during a tile: [tile, padded N], or [vectors, padded N, lanes] where constant over time.
template <class T>
class Held {
 public:
  Held(const Coefficient<T>& from, std::int64_t states, std::int64_t channels, Shelf<T>& shelf)
      : from_(from), states_(states), padded_(selective_scan_padded(states)) {
    held_ = shelf.take((tile > channels ? tile : channels) * padded_);
  }
  bool timed() const { return from_.row != 0; }

  void take_block(const Block& block) {
    group_ = block.group;
    if (!timed()) turn_in(from_.data + block.first * states_, block.width, states_, held_);
  }
  void take_tile(std::int64_t row, std::int64_t tokens) {
    if (!timed()) return;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const T* from = from_.data + (row + t) * from_.row + group_ * from_.group;
      T* to = held_ + t * padded_;
      for (std::int64_t n = 0; n < states_; ++n) to[n] = from[n];
      for (std::int64_t n = states_; n < padded_; ++n) to[n] = T(0);
    }
  }
  // Where the tile's numbers for states from n on lie, for vector v.
  const T* at(std::int64_t v, std::int64_t n) const {
    return timed() ? held_ + n : held_ + (v * padded_ + n) * lanes<T>;
  }

 private:
  Coefficient<T> from_;
  std::int64_t states_;
  std::int64_t padded_;
  std::int64_t group_ = 0;
  T* held_;
};

template <bool timed, class T>
LAVAGNA_INLINE Vec<T> coefficient(const T* held, std::int64_t token, std::int64_t padded, int n) {
  if constexpr (timed) return splat(held[token * padded + n]);
  return load(held + n * lanes<T>);
}

// Where the state before a tile is kept: [tiles, blocks of 16 channels, padded N, 16].
template <class T>
LAVAGNA_INLINE T* kept_at(const SelectiveScan<T>& a, std::int64_t m, std::int64_t k, const Block& block,
                          std::int64_t v) {
  constexpr std::int64_t wide = selective_scan_lanes;
  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t blocks = selective_scan_blocks(in_group, wide);
  const std::int64_t channel = block.first - block.group * in_group + v * lanes<T>;
  const std::int64_t before = a.sequences.begin(m) / tile + m + k;  // at least the tiles of the sequences before
  const std::int64_t at = (before * a.groups + block.group) * blocks + channel / wide;
  return a.kept + at * selective_scan_padded(a.states) * wide + channel % wide;
}

// Keep the state of one vector of channels; the last one of a group also fills its block of 16.
template <class T>
void keep(const SelectiveScan<T>& a, std::int64_t m, std::int64_t k, const Block& block, std::int64_t v, const T* h) {
  const std::int64_t padded = selective_scan_padded(a.states);
  T* to = kept_at(a, m, k, block, v);
  for (std::int64_t n = 0; n < padded; ++n) store(to + n * selective_scan_lanes, load(h + n * lanes<T>));
  if (v + 1 < vectors<T>(block)) return;
  for (++v; v * lanes<T> % selective_scan_lanes != 0; ++v) {
    to = kept_at(a, m, k, block, v);
    for (std::int64_t n = 0; n < padded; ++n) store(to + n * selective_scan_lanes, Vec<T>{});
  }
}

// What the next tile needs of the same channels, which nobody has touched for long: asked for while this tile is worked
// on. The processor does not guess it, for every row is in another page.
template <class T, int count>
struct Ahead {
  const T* rows[count];
  std::int64_t steps[count];

  LAVAGNA_INLINE void fetch(std::int64_t t) const {
    LAVAGNA_UNROLL
    for (int i = 0; i < count; ++i) __builtin_prefetch(rows[i] + t * steps[i], 0, 2);
  }
};

// `delta` is Δ log2(e) throughout: to give the factor to A would make an error of rounding that is the same at every
// token, and grows with them.
//
// h ← exp(Δ A) h + u B and y += C h for `count` states of one vector of channels, through a tile.
template <int count, bool B_timed, bool C_timed, class T>
void scan(const Ahead<T, 3>& ahead, std::int64_t tokens, const T* delta, const T* u, const T* A, const T* B,
          const T* C, std::int64_t padded, T* state, T* y) {
  const Decay<T> decay;
  Vec<T> h[count];
  LAVAGNA_UNROLL
  for (int n = 0; n < count; ++n) h[n] = load(state + n * lanes<T>);
  for (std::int64_t t = 0; t < tokens; ++t) {
    ahead.fetch(t);
    const Vec<T> delta_t = load(delta + t * lanes<T>);
    const Vec<T> u_t = load(u + t * lanes<T>);
    Vec<T> sums[2] = {load(y + t * lanes<T>), Vec<T>{}};
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      h[n] = decay(delta_t * load(A + n * lanes<T>)) * h[n] + u_t * coefficient<B_timed>(B, t, padded, n);
      sums[n % 2] += h[n] * coefficient<C_timed>(C, t, padded, n);
    }
    store(y + t * lanes<T>, sums[0] + sums[1]);
  }
  LAVAGNA_UNROLL
  for (int n = 0; n < count; ++n) store(state + n * lanes<T>, h[n]);
}

// Δ log2(e), u = Δ x and the skip, with which y begins.
template <class T>
void prepare(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Channels<T>& channels, T* delta,
             T* u, T* y) {
  const From<T> x(a.x, row), dt(a.dt, row);
  const Step<T> step(a, channels);
  const Vec<T> D = channels.get_or_zero(a.D);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Vec<T> delta_t = step.limited(step.unlimited(step.raw(channels.get(dt.at(t)))));
    const Vec<T> x_t = channels.get(x.at(t));
    store(delta + t * lanes<T>, delta_t * log2_e<T>);
    store(u + t * lanes<T>, delta_t * x_t);
    store(y + t * lanes<T>, D * x_t);
  }
}

template <class T>
void gate(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Channels<T>& channels, const T* y) {
  const From<T> z(a.z, row);
  T* const out = a.y + row * a.channels;
  for (std::int64_t t = 0; t < tokens; ++t) {
    Vec<T> y_t = load(y + t * lanes<T>);
    if (z.first != nullptr) {
      const Vec<T> z_t = channels.get(z.at(t));
      y_t *= z_t * sigmoid<T>(z_t);
    }
    channels.put(out + t * a.channels, y_t);
  }
}

template <class T, bool B_timed, bool C_timed>
void forward(const SelectiveScan<T>& a, std::int64_t begin, std::int64_t end, int thread) {
  constexpr std::int64_t wide = selective_scan_forward_channels;
  const std::int64_t padded = selective_scan_padded(a.states);
  Shelf<T> shelf(a.scratch + thread * selective_scan_scratch(wide, a.states, false));
  T* const delta = shelf.take(tile * lanes<T>);
  T* const u = shelf.take(tile * lanes<T>);
  T* const y = shelf.take(tile * lanes<T>);
  T* const A = shelf.take(wide * padded);
  T* const h = shelf.take(wide * padded);
  Held<T> B(a.B, a.states, wide, shelf);
  Held<T> C(a.C, a.states, wide, shelf);

  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t blocks = selective_scan_blocks(in_group, wide);
  std::int64_t current = -1;
  Block block{};
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t m = task % a.sequences.count;
    if (task / a.sequences.count != current) {
      current = task / a.sequences.count;
      const std::int64_t group = current / blocks;
      const std::int64_t offset = current % blocks * wide;
      block = {group, group * in_group + offset, min_of(in_group - offset, wide)};
      turn_in(a.A + block.first * a.states, block.width, a.states, A);
      for (std::int64_t i = 0; i < vectors<T>(block) * padded; ++i)
        store(A + i * lanes<T>, bounded<T>(load(A + i * lanes<T>)));
      B.take_block(block);
      C.take_block(block);
    }
    turn_in(a.state + (m * a.channels + block.first) * a.states, block.width, a.states, h);
    const std::int64_t length = a.sequences.length(m);
    for (std::int64_t k = 0; k * tile < length; ++k) {
      const std::int64_t tokens = min_of(length - k * tile, tile);
      const std::int64_t row = a.sequences.begin(m) + k * tile;
      B.take_tile(row, tokens);
      C.take_tile(row, tokens);
      for (std::int64_t v = 0; v < vectors<T>(block); ++v) {
        const Channels<T> channels(block, v);
        T* const h_v = h + v * padded * lanes<T>;
        const T* const A_v = A + v * padded * lanes<T>;
        if (a.kept != nullptr) keep(a, m, k, block, v, h_v);
        const From<T> x(a.x, row + tile), dt(a.dt, row + tile), z(a.z.data == nullptr ? a.x : a.z, row + tile);
        const Ahead<T, 3> ahead{{x.at(0) + channels.first, dt.at(0) + channels.first, z.at(0) + channels.first},
                                {x.step, dt.step, z.step}};
        prepare(a, row, tokens, channels, delta, u, y);
        std::int64_t n = 0;
        for (; n + 16 <= padded; n += 16)
          scan<16, B_timed, C_timed>(ahead, tokens, delta, u, A_v + n * lanes<T>, B.at(v, n), C.at(v, n), padded,
                                     h_v + n * lanes<T>, y);
        for (; n < padded; n += 4)
          scan<4, B_timed, C_timed>(ahead, tokens, delta, u, A_v + n * lanes<T>, B.at(v, n), C.at(v, n), padded,
                                    h_v + n * lanes<T>, y);
        gate(a, row, tokens, channels, y);
      }
    }
    turn_out<false>(h, block.width, a.states, a.final + (m * a.channels + block.first) * a.states);
  }
}

// Recompute a tile from the state before it: decays and states of `count` states of `wide` vectors are left in
// [token, count, wide, lanes], the state before token t at t. y += C h, for the gate's gradient.
template <int wide, int count, bool B_timed, bool C_timed, class T>
void recompute(std::int64_t tokens, const T* delta, const T* u, const T* A, const Held<T>& B, const Held<T>& C,
               std::int64_t v, std::int64_t n0, std::int64_t padded, const T* const* kept, T* decays, T* states, T* y) {
  const Decay<T> decay;
  constexpr std::int64_t step = count * wide * lanes<T>;
  Vec<T> h[count][wide], A_n[count][wide];
  const T* B_v[wide];
  const T* C_v[wide];
  LAVAGNA_UNROLL
  for (int i = 0; i < wide; ++i) {
    B_v[i] = B.at(v + i, n0);
    C_v[i] = C.at(v + i, n0);
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      h[n][i] = load(kept[i] + (n0 + n) * selective_scan_lanes);
      A_n[n][i] = load(A + (i * padded + n0 + n) * lanes<T>);
      store(states + (n * wide + i) * lanes<T>, h[n][i]);
    }
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    Vec<T> delta_t[wide], u_t[wide], sum[wide];
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) {
      delta_t[i] = load(delta + i * pitch<T> + t * lanes<T>);
      u_t[i] = load(u + i * pitch<T> + t * lanes<T>);
      sum[i] = load(y + i * pitch<T> + t * lanes<T>);
    }
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n)
      LAVAGNA_UNROLL
      for (int i = 0; i < wide; ++i) {
        const Vec<T> a = decay(delta_t[i] * A_n[n][i]);
        store(decays + t * step + (n * wide + i) * lanes<T>, a);
        h[n][i] = a * h[n][i] + u_t[i] * coefficient<B_timed>(B_v[i], t, padded, n);
        store(states + (t + 1) * step + (n * wide + i) * lanes<T>, h[n][i]);
        sum[i] += h[n][i] * coefficient<C_timed>(C_v[i], t, padded, n);
      }
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) store(y + i * pitch<T> + t * lanes<T>, sum[i]);
  }
}

// Where the sums of a sweep go, all by vectors of channels: a timed coefficient's [token, count, lanes] is shared by
// all channels of the block, a constant one's is [vectors, padded N, lanes].
template <class T>
struct Sums {
  T* dB;
  T* dC;
  T* dA;
  T* du;
  T* d_delta;
  bool first;  // du and d_delta hold nothing yet
};

template <bool timed, class T>
LAVAGNA_INLINE T* sum_at(T* sums, std::int64_t token, int count, std::int64_t padded, int i, int n) {
  return sums + (timed ? token * count + n : i * padded + n) * lanes<T>;
}

// The way back through a tile: g_t = C_t dy_t + a_{t+1} g_{t+1} is the gradient of h_t, `carry` is a_t g_t.
template <int wide, int count, bool B_timed, bool C_timed, class T>
void sweep(std::int64_t tokens, const T* delta, const T* u, const T* dy, const T* A, const Held<T>& B, const Held<T>& C,
           std::int64_t v, std::int64_t n0, std::int64_t padded, const T* decays, const T* states, T* carry,
           const Sums<T>& sums) {
  constexpr std::int64_t step = count * wide * lanes<T>;
  Vec<T> g[count][wide], dA[count][wide];
  const T* B_v[wide];
  const T* C_v[wide];
  LAVAGNA_UNROLL
  for (int i = 0; i < wide; ++i) {
    B_v[i] = B.at(v + i, n0);
    C_v[i] = C.at(v + i, n0);
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      g[n][i] = load(carry + (i * padded + n0 + n) * lanes<T>);
      dA[n][i] = load(sums.dA + (i * padded + n0 + n) * lanes<T>);
    }
  }
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    Vec<T> delta_t[wide], u_t[wide], dy_t[wide], du[wide], d_delta[wide];
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) {
      delta_t[i] = load(delta + i * pitch<T> + t * lanes<T>);
      u_t[i] = load(u + i * pitch<T> + t * lanes<T>);
      dy_t[i] = load(dy + i * pitch<T> + t * lanes<T>);
      du[i] = sums.first ? Vec<T>{} : load(sums.du + i * pitch<T> + t * lanes<T>);
      d_delta[i] = sums.first ? Vec<T>{} : load(sums.d_delta + i * pitch<T> + t * lanes<T>);
    }
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      Vec<T> dB = load(sum_at<B_timed>(sums.dB, t, count, padded, 0, n));
      Vec<T> dC = load(sum_at<C_timed>(sums.dC, t, count, padded, 0, n));
      LAVAGNA_UNROLL
      for (int i = 0; i < wide; ++i) {
        const std::int64_t at = t * step + (n * wide + i) * lanes<T>;
        if (i > 0 && !B_timed) dB = load(sum_at<B_timed>(sums.dB, t, count, padded, i, n));
        if (i > 0 && !C_timed) dC = load(sum_at<C_timed>(sums.dC, t, count, padded, i, n));
        g[n][i] += dy_t[i] * coefficient<C_timed>(C_v[i], t, padded, n);
        dC += dy_t[i] * load(states + at + step);
        dB += u_t[i] * g[n][i];
        du[i] += g[n][i] * coefficient<B_timed>(B_v[i], t, padded, n);
        g[n][i] *= load(decays + at);
        const Vec<T> exponent = g[n][i] * load(states + at);
        dA[n][i] += delta_t[i] * exponent;
        d_delta[i] += exponent * load(A + (i * padded + n0 + n) * lanes<T>);
        if (i == wide - 1 || !B_timed) store(sum_at<B_timed>(sums.dB, t, count, padded, i, n), dB);
        if (i == wide - 1 || !C_timed) store(sum_at<C_timed>(sums.dC, t, count, padded, i, n), dC);
      }
    }
    LAVAGNA_UNROLL
    for (int i = 0; i < wide; ++i) {
      store(sums.du + i * pitch<T> + t * lanes<T>, du[i]);
      store(sums.d_delta + i * pitch<T> + t * lanes<T>, d_delta[i]);
    }
  }
  LAVAGNA_UNROLL
  for (int i = 0; i < wide; ++i)
    LAVAGNA_UNROLL
    for (int n = 0; n < count; ++n) {
      store(carry + (i * padded + n0 + n) * lanes<T>, g[n][i]);
      store(sums.dA + (i * padded + n0 + n) * lanes<T>, dA[n][i]);
    }
}

// Sums of a timed coefficient over channels in the lanes, [tokens, 4, lanes], go to the rows of its gradient; to a part
// of it that this piece of the channels has for itself. `first` says that nothing is there yet.
template <class T>
void collect(const SelectiveScan<T>& a, const Coefficient<T>& coefficient, const T* from, std::int64_t row,
             std::int64_t tokens, std::int64_t group, std::int64_t piece, std::int64_t n0, bool first, T* gradient) {
  constexpr std::int64_t count = selective_scan_states;
  T total[tile * count];
  for (std::int64_t i = 0; i < tokens * count; i += lanes<T>) {
    Vec<T> parts[lanes<T>];
    LAVAGNA_UNROLL
    for (int l = 0; l < lanes<T>; ++l) parts[l] = load(from + (i + l) * lanes<T>);
    store(total + i, sums<T>(parts));
  }
  const bool shared = coefficient.group == 0;
  const std::int64_t part = shared ? group * a.pieces + piece : piece;
  const std::int64_t width = (shared ? 1 : a.groups) * a.states;
  T* const to = gradient + (part * a.rows + row) * width + group * coefficient.group + n0;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t n = 0; n < min_of(count, a.states - n0); ++n)
      to[t * width + n] = total[t * count + n] + (first ? T(0) : to[t * width + n]);
}

template <class T>
void clear(T* memory, std::int64_t numbers) {
  for (std::int64_t i = 0; i < numbers; i += lanes<T>) store(memory + i, Vec<T>{});
}

// What the backward pass holds of a tile, [vectors of channels, tokens, lanes] each.
template <class T>
struct Work {
  T* delta;    // Δ log2(e)
  T* u;        // Δ x
  T* dy;       // behind the gate
  T* y;        // before the gate
  T* du;
  T* d_delta;  // what comes through the decays alone
  T* slope;    // dΔ / d dt
  T* dz;       // dz / dy before the gate

  Work(std::int64_t channels, Shelf<T>& shelf) {
    for (T** part : {&delta, &u, &dy, &y, &du, &d_delta, &slope, &dz}) *part = shelf.take(channels * (tile + 1));
  }
  Work of(std::int64_t v) const {
    Work one = *this;
    for (T** part : {&one.delta, &one.u, &one.dy, &one.y, &one.du, &one.d_delta, &one.slope, &one.dz})
      *part += v * pitch<T>;
    return one;
  }
};

template <class T>
void prepare_back(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Channels<T>& channels,
                  const Work<T>& work) {
  const From<T> x(a.x, row), dt(a.dt, row), z(a.z, row), dy(a.dy, row);
  const Step<T> step(a, channels);
  const Vec<T> D = channels.get_or_zero(a.D);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t at = t * lanes<T>;
    const Vec<T> raw = step.raw(channels.get(dt.at(t)));
    const Vec<T> unlimited = step.unlimited(raw);
    const Vec<T> delta_t = step.limited(unlimited);
    const Vec<T> x_t = channels.get(x.at(t));
    Vec<T> dy_t = channels.get(dy.at(t));
    if (z.first != nullptr) {
      const Vec<T> z_t = channels.get(z.at(t));
      const Vec<T> open = sigmoid<T>(z_t);
      store(work.dz + at, dy_t * open * (T(1) + z_t * (T(1) - open)));
      dy_t *= z_t * open;
    }
    store(work.delta + at, delta_t * log2_e<T>);
    store(work.u + at, delta_t * x_t);
    store(work.slope + at, step.slope(raw, unlimited));
    store(work.dy + at, dy_t);
    store(work.y + at, D * x_t);
  }
}

template <class T>
void finish_back(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Channels<T>& channels,
                 const Work<T>& work, T* dD, T* d_bias) {
  const From<T> x(a.x, row);
  const Vec<T> D = channels.get_or_zero(a.D);
  const std::int64_t out = row * a.channels;
  Vec<T> dD_sum = load(dD), d_bias_sum = load(d_bias);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t at = t * lanes<T>;
    const Vec<T> x_t = channels.get(x.at(t));
    const Vec<T> dy_t = load(work.dy + at);
    const Vec<T> du_t = load(work.du + at);
    const Vec<T> d_dt = (load(work.d_delta + at) + du_t * x_t) * load(work.slope + at);
    dD_sum += dy_t * x_t;
    d_bias_sum += d_dt;
    channels.put(a.dx + out + t * a.channels, du_t * (load(work.delta + at) * ln_2<T>) + D * dy_t);
    channels.put(a.d_dt + out + t * a.channels, d_dt);
    if (a.z.data != nullptr)
      channels.put(a.dz + out + t * a.channels, load(work.y + at) * load(work.dz + at));
  }
  store(dD, dD_sum);
  store(d_bias, d_bias_sum);
}

template <class T, bool B_timed, bool C_timed>
void backward(const SelectiveScan<T>& a, std::int64_t begin, std::int64_t end, int thread) {
  constexpr std::int64_t wide = selective_scan_backward_channels;
  constexpr std::int64_t count = selective_scan_states;
  const std::int64_t padded = selective_scan_padded(a.states);
  Shelf<T> shelf(a.scratch + thread * selective_scan_scratch(wide, a.states, true));
  const Work<T> work(wide, shelf);
  T* const dD = shelf.take(wide);
  T* const d_bias = shelf.take(wide);
  T* const A = shelf.take(wide * padded);
  T* const dA = shelf.take(wide * padded);
  T* const carry = shelf.take(wide * padded);
  T* const dB = shelf.take(B_timed ? tile * count * lanes<T> : wide * padded);
  T* const dC = shelf.take(C_timed ? tile * count * lanes<T> : wide * padded);
  T* const decays = shelf.take(2 * tile * count * lanes<T>);
  T* const states = shelf.take(2 * (tile + 1) * count * lanes<T>);
  Held<T> B(a.B, a.states, wide, shelf);
  Held<T> C(a.C, a.states, wide, shelf);

  // A task is a piece of a group in one sequence; those of one piece lie together.
  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t in_piece =
      selective_scan_blocks(selective_scan_blocks(in_group, a.pieces), selective_scan_lanes) * selective_scan_lanes;
  const std::int64_t M = a.sequences.count;
  for (std::int64_t task = begin; task < end;) {
    const std::int64_t group = task / M / a.pieces;
    const std::int64_t piece = task / M % a.pieces;
    const std::int64_t piece_end = min_of((task / M + 1) * M, end);
    const std::int64_t channel_end = min_of((piece + 1) * in_piece, in_group);
    for (std::int64_t offset = piece * in_piece; offset < channel_end; offset += wide) {
      const Block block{group, group * in_group + offset, min_of(channel_end - offset, wide)};
      const std::int64_t width = block.width;
      const std::int64_t count_v = vectors<T>(block);
      turn_in(a.A + block.first * a.states, width, a.states, A);
      for (std::int64_t i = 0; i < count_v * padded; ++i) store(A + i * lanes<T>, bounded<T>(load(A + i * lanes<T>)));
      B.take_block(block);
      C.take_block(block);
      clear(dA, count_v * padded * lanes<T>);
      if (!B_timed) clear(dB, count_v * padded * lanes<T>);
      if (!C_timed) clear(dC, count_v * padded * lanes<T>);
      clear(dD, count_v * lanes<T>);
      clear(d_bias, count_v * lanes<T>);
      for (std::int64_t m = task % M; m < task % M + piece_end - task; ++m) {
        turn_in(a.d_final + (m * a.channels + block.first) * a.states, width, a.states, carry);
        const std::int64_t length = a.sequences.length(m);
        for (std::int64_t k = (length + tile - 1) / tile - 1; k >= 0; --k) {
          const std::int64_t tokens = min_of(length - k * tile, tile);
          const std::int64_t row = a.sequences.begin(m) + k * tile;
          B.take_tile(row, tokens);
          C.take_tile(row, tokens);
          for (std::int64_t v = 0; v < count_v; ++v)
            prepare_back(a, row, tokens, Channels<T>(block, v), work.of(v));
          for (std::int64_t n = 0; n < padded; n += count) {
            if (B_timed) clear(dB, tile * count * lanes<T>);
            if (C_timed) clear(dC, tile * count * lanes<T>);
            const auto vectors_from = [&](auto number, std::int64_t v) {
              constexpr int together = decltype(number)::value;
              const T* kept[together];
              for (int i = 0; i < together; ++i) kept[i] = kept_at(a, m, k, block, v + i);
              const T* const A_v = A + v * padded * lanes<T>;
              const std::int64_t constant = (v * padded + n) * lanes<T>;
              const Work<T> here = work.of(v);
              recompute<together, count, B_timed, C_timed>(tokens, here.delta, here.u, A_v, B, C, v, n, padded, kept,
                                                           decays, states, here.y);
              const Sums<T> sums{B_timed ? dB : dB + constant, C_timed ? dC : dC + constant,
                                 dA + v * padded * lanes<T>, here.du, here.d_delta, n == 0};
              sweep<together, count, B_timed, C_timed>(tokens, here.delta, here.u, here.dy, A_v, B, C, v, n, padded,
                                                       decays, states, carry + v * padded * lanes<T>, sums);
            };
            std::int64_t v = 0;
            for (; v + 2 <= count_v; v += 2) vectors_from(std::integral_constant<int, 2>(), v);
            if (v < count_v) vectors_from(std::integral_constant<int, 1>(), v);
            const bool first = offset == piece * in_piece;
            if (B_timed) collect(a, a.B, dB, row, tokens, group, piece, n, first, a.dB);
            if (C_timed) collect(a, a.C, dC, row, tokens, group, piece, n, first, a.dC);
          }
          for (std::int64_t v = 0; v < count_v; ++v)
            finish_back(a, row, tokens, Channels<T>(block, v), work.of(v), dD + v * lanes<T>, d_bias + v * lanes<T>);
        }
        turn_out<false>(carry, width, a.states, a.d_state + (m * a.channels + block.first) * a.states);
      }
      const std::int64_t slot = thread * a.channels + block.first;
      for (std::int64_t i = 0; i < count_v * padded; ++i) store(dA + i * lanes<T>, load(dA + i * lanes<T>) * ln_2<T>);
      turn_out<true>(dA, width, a.states, a.dA + slot * a.states);
      if (!B_timed) turn_out<true>(dB, width, a.states, a.dB + slot * a.states);
      if (!C_timed) turn_out<true>(dC, width, a.states, a.dC + slot * a.states);
      for (std::int64_t v = 0; v < count_v; ++v) {
        const Channels<T> channels(block, v);
        T* const dD_row = a.dD + thread * a.channels;
        T* const d_bias_row = a.d_bias + thread * a.channels;
        if (a.D != nullptr) channels.put(dD_row, channels.get(dD_row) + load(dD + v * lanes<T>));
        if (a.dt_bias != nullptr) channels.put(d_bias_row, channels.get(d_bias_row) + load(d_bias + v * lanes<T>));
      }
    }
    task = piece_end;
  }
}

// One token of every sequence. States lie in the lanes here, for that is how the caller keeps them.
template <class T>
void step(const SelectiveScan<T>& a, std::int64_t m, const Block& block) {
  const Decay<T> decay;
  const std::int64_t N = a.states;
  const Channels<T> channels(block, 0);
  T delta[lanes<T>], u[lanes<T>], y[lanes<T>];
  prepare(a, m, 1, channels, delta, u, y);
  Vec<T> parts[lanes<T>] = {};
  for (int i = 0; i < channels.count; ++i) {
    const std::int64_t d = block.first + i;
    const T* const A = a.A + d * N;
    const T* const B = a.B.row != 0 ? a.B.data + m * a.B.row + block.group * a.B.group : a.B.data + d * N;
    const T* const C = a.C.row != 0 ? a.C.data + m * a.C.row + block.group * a.C.group : a.C.data + d * N;
    const std::int64_t at = (m * a.channels + d) * N;
    for (std::int64_t v = 0; v * lanes<T> < N; ++v) {
      const Vec<T> h = decay(delta[i] * bounded<T>(get(A, v, N))) * get(a.state + at, v, N) + u[i] * get(B, v, N);
      put(a.final + at, v, N, h);
      parts[i] += h * get(C, v, N);
    }
  }
  store(y, load(y) + sums<T>(parts));
  gate(a, m, 1, channels, y);
}

template <class T>
void run_forward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const SelectiveScan<T>& a = *static_cast<const SelectiveScan<T>*>(arguments);
  constexpr void (*by_time[2][2])(const SelectiveScan<T>&, std::int64_t, std::int64_t, int) = {
      {forward<T, false, false>, forward<T, false, true>}, {forward<T, true, false>, forward<T, true, true>}};
  by_time[a.B.row != 0][a.C.row != 0](a, begin, end, thread);
}

template <class T>
void run_backward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const SelectiveScan<T>& a = *static_cast<const SelectiveScan<T>*>(arguments);
  constexpr void (*by_time[2][2])(const SelectiveScan<T>&, std::int64_t, std::int64_t, int) = {
      {backward<T, false, false>, backward<T, false, true>}, {backward<T, true, false>, backward<T, true, true>}};
  by_time[a.B.row != 0][a.C.row != 0](a, begin, end, thread);
}

template <class T>
void run_step(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const SelectiveScan<T>& a = *static_cast<const SelectiveScan<T>*>(arguments);
  constexpr std::int64_t wide = selective_scan_step_channels;
  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t blocks = selective_scan_blocks(in_group, wide);
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t group = task / blocks % a.groups;
    const std::int64_t last = min_of((task % blocks + 1) * wide, in_group);
    for (std::int64_t offset = task % blocks * wide; offset < last; offset += lanes<T>)
      step(a, task / blocks / a.groups, {group, group * in_group + offset, min_of(last - offset, lanes<T>)});
  }
}

}  // namespace

const SelectiveScanKernels selective_scan = {{run_forward<float>, run_forward<double>},
                                             {run_backward<float>, run_backward<double>},
                                             {run_step<float>, run_step<double>}};

}  // namespace lavagna::LAVAGNA_ISA
