// The selective scan: channels in the lanes of vectors, their states in registers, time innermost, a few tokens (a tile)
// at a time. docs/performance/selective_scan.md explains it.
#include "selective_scan.h"

#include <type_traits>

#include "../core/vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

constexpr std::int64_t tile = selective_scan_tile;

// Channels whose numbers are taken from memory together: a row of them is some lines of one page.
constexpr std::int64_t strip = 64;

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

// The strip of a block that begins with channel d of it.
LAVAGNA_INLINE Block part(const Block& block, std::int64_t d) {
  return {block.group, block.first + d, min_of(block.width - d, strip)};
}

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

// Δ of a strip of channels in a tile: `use` gets it with the token, the channels, where they lie among [vectors, tokens,
// lanes], and, where it is asked for, the slope dΔ / d dt. In two loops, one after the other: a chain of dependent
// operations as long as both together would fill what the processor can look ahead.
template <bool with_slope, class T, class Use>
LAVAGNA_INLINE void steps(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block,
                          const Use& use) {
  const From<T> dt(a.dt, row);
  const Vec<T> low = splat(a.low), high = splat(a.high);
  const bool soft = a.softplus;
  const std::int64_t count = vectors<T>(block);
  T raws[strip * (tile + 1)], smalls[strip * (tile + 1)];  // dt + bias and e^−|dt + bias|
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < count; ++v) {
      const Channels<T> channels(block, v);
      const std::int64_t at = v * pitch<T> + t * lanes<T>;
      const Vec<T> raw = channels.get(dt.at(t)) + channels.get_or_zero(a.dt_bias);
      store(raws + at, raw);
      if (soft) store(smalls + at, exact_exp<T>(min<T>(raw, -raw)));
    }
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < count; ++v) {
      const std::int64_t at = v * pitch<T> + t * lanes<T>;
      const Vec<T> raw = load(raws + at);
      Vec<T> delta = raw, slope = splat(T(1));
      if (soft) {
        const Vec<T> small = load(smalls + at);
        delta = softplus<T>(raw, small);
        const Vec<T> above = T(1) / (T(1) + small);
        if (with_slope) slope = raw < 0 ? small * above : above;
      }
      if (with_slope) slope = (delta < low) | (delta > high) ? Vec<T>{} : slope;
      use(t, Channels<T>(block, v), at, min<T>(high, max<T>(low, delta)), slope);
    }
}

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
  const T* next = kept_at(a, m, k + 1, block, v);
  for (std::int64_t n = 0; n < padded; ++n) {
    store(to + n * selective_scan_lanes, load(h + n * lanes<T>));
    __builtin_prefetch(next + n * selective_scan_lanes, 0, 2);
  }
  if (v + 1 < vectors<T>(block)) return;
  for (++v; v * lanes<T> % selective_scan_lanes != 0; ++v) {
    to = kept_at(a, m, k, block, v);
    for (std::int64_t n = 0; n < padded; ++n) store(to + n * selective_scan_lanes, Vec<T>{});
  }
}

// What will be needed of a strip in one of its rows, which nobody has touched for long: asked for while something else is
// worked on, one token at a time. The processor does not guess it, for every row is in another page.
struct Ahead {
  const char* first;
  std::int64_t step;

  template <class T>
  Ahead(const T* rows, std::int64_t row) : first(reinterpret_cast<const char*>(rows)), step(row * sizeof(T)) {}

  // `near` is 3 for L1 and 2 for L2: backward needs all of L1 for what it works on.
  template <int near>
  LAVAGNA_INLINE void fetch(std::int64_t t) const {
    LAVAGNA_UNROLL
    for (int line = 0; line < 4; ++line) __builtin_prefetch(first + t * step + 64 * line, 0, near);
  }
};

// `delta` is Δ log2(e) throughout: to give the factor to A would make an error of rounding that is the same at every
// token, and grows with them.
//
// h ← exp(Δ A) h + u B and y += C h for `count` states of one vector of channels, through a tile.
template <int count, bool B_timed, bool C_timed, class T>
void scan(const Ahead& ahead, std::int64_t tokens, const T* delta, const T* u, const T* A, const T* B, const T* C,
          std::int64_t padded, T* state, T* y) {
  const Decay<T> decay;
  Vec<T> h[count];
  LAVAGNA_UNROLL
  for (int n = 0; n < count; ++n) h[n] = load(state + n * lanes<T>);
  for (std::int64_t t = 0; t < tokens; ++t) {
    ahead.fetch<3>(t);
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
void prepare(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block, T* delta, T* u,
             T* y) {
  const From<T> x(a.x, row);
  const auto use = [&](std::int64_t t, const Channels<T>& channels, std::int64_t at, Vec<T> delta_t, Vec<T>)
                       LAVAGNA_LAMBDA {
    const Vec<T> x_t = channels.get(x.at(t));
    store(delta + at, delta_t * log2_e<T>);
    store(u + at, delta_t * x_t);
    store(y + at, channels.get_or_zero(a.D) * x_t);
  };
  steps<false>(a, row, tokens, block, use);
}

template <class T>
void gate(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block, const T* y) {
  const From<T> z(a.z, row);
  T* const out = a.y + row * a.channels;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < vectors<T>(block); ++v) {
      const Channels<T> channels(block, v);
      Vec<T> y_t = load(y + v * pitch<T> + t * lanes<T>);
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
  Shelf<T> shelf(a.scratch + thread * selective_scan_scratch(a.states, false));
  T* const delta = shelf.take(strip * (tile + 1));
  T* const u = shelf.take(strip * (tile + 1));
  T* const y = shelf.take(strip * (tile + 1));
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
      for (std::int64_t d = 0; d < block.width; d += strip) {
        const Block here = part(block, d);
        const From<T> x(a.x, row + tile), dt(a.dt, row + tile), z(a.z.data == nullptr ? a.x : a.z, row + tile);
        const Ahead ahead[] = {{a.y + row * a.channels + here.first, a.channels},
                               {dt.first + here.first, dt.step},
                               {x.first + here.first, x.step},
                               {z.first + here.first, z.step}};
        prepare(a, row, tokens, here, delta, u, y);
        for (std::int64_t i = 0; i < vectors<T>(here); ++i) {
          const std::int64_t v = d / lanes<T> + i;
          const std::int64_t at = i * pitch<T>;
          T* const h_v = h + v * padded * lanes<T>;
          const T* const A_v = A + v * padded * lanes<T>;
          if (a.kept != nullptr) keep(a, m, k, block, v, h_v);
          std::int64_t n = 0;
          for (; n + 16 <= padded; n += 16)
            scan<16, B_timed, C_timed>(ahead[i % 4], tokens, delta + at, u + at, A_v + n * lanes<T>, B.at(v, n),
                                       C.at(v, n), padded, h_v + n * lanes<T>, y + at);
          for (; n < padded; n += 4)
            scan<4, B_timed, C_timed>(ahead[i % 4], tokens, delta + at, u + at, A_v + n * lanes<T>, B.at(v, n),
                                      C.at(v, n), padded, h_v + n * lanes<T>, y + at);
        }
        gate(a, row, tokens, here, y);
      }
    }
    turn_out<false>(h, block.width, a.states, a.final + (m * a.channels + block.first) * a.states);
  }
}

// Recompute a tile from the state before it: decays and states of `count` states of `wide` vectors are left in
// [token, count, wide, lanes], the state before token t at t. y += C h, for the gate's gradient.
template <int wide, int count, bool B_timed, bool C_timed, class T>
void recompute(const Ahead* ahead, int fetches, std::int64_t tokens, const T* delta, const T* u, const T* A, const Held<T>& B, const Held<T>& C,
               std::int64_t v, std::int64_t n0, std::int64_t padded, const T* const* kept, const T* const* next,
               T* decays, T* states, T* y) {
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
      __builtin_prefetch(next[i] + (n0 + n) * selective_scan_lanes, 0, 2);
      A_n[n][i] = load(A + (i * padded + n0 + n) * lanes<T>);
      store(states + (n * wide + i) * lanes<T>, h[n][i]);
    }
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < fetches; ++i) ahead[i].fetch<2>(t);
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
void prepare_back(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block,
                  const Work<T>& work) {
  const From<T> x(a.x, row), z(a.z, row), dy(a.dy, row);
  const auto use = [&](std::int64_t t, const Channels<T>& channels, std::int64_t at, Vec<T> delta_t, Vec<T> slope)
                       LAVAGNA_LAMBDA {
    const Vec<T> x_t = channels.get(x.at(t));
    store(work.delta + at, delta_t * log2_e<T>);
    store(work.slope + at, slope);
    store(work.u + at, delta_t * x_t);
    store(work.y + at, channels.get_or_zero(a.D) * x_t);
  };
  steps<true>(a, row, tokens, block, use);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < vectors<T>(block); ++v) {
      const Channels<T> channels(block, v);
      const std::int64_t at = v * pitch<T> + t * lanes<T>;
      Vec<T> dy_t = channels.get(dy.at(t));
      if (z.first != nullptr) {
        const Vec<T> z_t = channels.get(z.at(t));
        const Vec<T> open = sigmoid<T>(z_t);
        store(work.dz + at, dy_t * open * (T(1) + z_t * (T(1) - open)));
        dy_t *= z_t * open;
      }
      store(work.dy + at, dy_t);
    }
}

template <class T>
void finish_back(const SelectiveScan<T>& a, std::int64_t row, std::int64_t tokens, const Block& block,
                 const Work<T>& work, T* dD, T* d_bias) {
  const From<T> x(a.x, row);
  T* const dx = a.dx + row * a.channels;
  T* const d_dt = a.d_dt + row * a.channels;
  T* const dz = a.z.data == nullptr ? nullptr : a.dz + row * a.channels;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t v = 0; v < vectors<T>(block); ++v) {
      const Channels<T> channels(block, v);
      const std::int64_t at = v * pitch<T> + t * lanes<T>;
      const Vec<T> x_t = channels.get(x.at(t));
      const Vec<T> dy_t = load(work.dy + at);
      const Vec<T> du_t = load(work.du + at);
      const Vec<T> d_dt_t = (load(work.d_delta + at) + du_t * x_t) * load(work.slope + at);
      store(dD + v * lanes<T>, load(dD + v * lanes<T>) + dy_t * x_t);
      store(d_bias + v * lanes<T>, load(d_bias + v * lanes<T>) + d_dt_t);
      channels.put(dx + t * a.channels,
                   du_t * (load(work.delta + at) * ln_2<T>) + channels.get_or_zero(a.D) * dy_t);
      channels.put(d_dt + t * a.channels, d_dt_t);
      if (dz != nullptr) channels.put(dz + t * a.channels, load(work.y + at) * load(work.dz + at));
    }
}

template <class T, bool B_timed, bool C_timed>
void backward(const SelectiveScan<T>& a, std::int64_t begin, std::int64_t end, int thread) {
  constexpr std::int64_t wide = selective_scan_backward_channels;
  constexpr std::int64_t count = selective_scan_states;
  const std::int64_t padded = selective_scan_padded(a.states);
  Shelf<T> shelf(a.scratch + thread * selective_scan_scratch(a.states, true));
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
          for (std::int64_t d = 0; d < width; d += strip)
            prepare_back(a, row, tokens, part(block, d), work.of(d / lanes<T>));
          for (std::int64_t n = 0; n < padded; n += count) {
            if (B_timed) clear(dB, tile * count * lanes<T>);
            if (C_timed) clear(dC, tile * count * lanes<T>);
            const auto vectors_from = [&](auto number, std::int64_t v) {
              constexpr int together = decltype(number)::value;
              const T* kept[together];
              const T* next[together];
              for (int i = 0; i < together; ++i) {
                kept[i] = kept_at(a, m, k, block, v + i);
                next[i] = kept_at(a, m, k > 0 ? k - 1 : k, block, v + i);
              }
              // In the first round: the inputs of the tile before this one, then what this one writes in the end.
              const std::int64_t d = v * lanes<T> / strip * strip + block.first;
              const bool inputs = v * lanes<T> % strip == 0;
              const std::int64_t above = row - tile;
              const Rows<T>& z = a.z.data == nullptr ? a.x : a.z;
              T* const dz = a.z.data == nullptr ? a.dx : a.dz;
              const Ahead ahead[2][4] = {{{a.dx + row * a.channels + d, a.channels},
                                          {a.d_dt + row * a.channels + d, a.channels},
                                          {dz + row * a.channels + d, a.channels},
                                          {a.dy.data + above * a.dy.row + d, a.dy.row}},
                                         {{a.x.data + above * a.x.row + d, a.x.row},
                                          {a.dt.data + above * a.dt.row + d, a.dt.row},
                                          {z.data + above * z.row + d, z.row},
                                          {a.dy.data + above * a.dy.row + d, a.dy.row}}};
              const T* const A_v = A + v * padded * lanes<T>;
              const std::int64_t constant = (v * padded + n) * lanes<T>;
              const Work<T> here = work.of(v);
              recompute<together, count, B_timed, C_timed>(ahead[inputs], n == 0 ? 4 : 0, tokens, here.delta, here.u, A_v, B,
                                                           C, v, n, padded, kept, next, decays, states, here.y);
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
          for (std::int64_t d = 0; d < width; d += strip)
            finish_back(a, row, tokens, part(block, d), work.of(d / lanes<T>), dD + d, d_bias + d);
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
  T delta[lanes<T>], u[lanes<T>], y[lanes<T>];
  prepare(a, m, 1, block, delta, u, y);
  Vec<T> parts[lanes<T>] = {};
  for (std::int64_t i = 0; i < block.width; ++i) {
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
  gate(a, m, 1, block, y);
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
