// Where the channels of the selective scan lie: in rows of the caller's tensors, and in the lanes of vectors.
#pragma once

#include "../core/vec.h"
#include "selective_scan.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

constexpr std::int64_t tile = selective_scan_tile;
constexpr std::int64_t strip = selective_scan_strip;

// Numbers from one vector of channels to the next where each has a tile of tokens: one token more than a tile, so that
// the same token of neighbours falls into different sets of the cache.
template <class T>
constexpr std::int64_t pitch = (tile + 1) * lanes<T>;

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

// Neighbouring vectors of channels, all of whose lanes are channels; or one with fewer.
template <class T, int many, bool whole>
struct Channels {
  static_assert(whole || many == 1);
  static constexpr int vectors = many;
  std::int64_t first;
  int left;

  Channels(const Block& block, std::int64_t v)
      : first(block.first + v * lanes<T>), left(static_cast<int>(min_of(block.width - v * lanes<T>, lanes<T>))) {}

  LAVAGNA_INLINE Vec<T> get(const T* row, int i) const {
    return whole ? load(row + first + i * lanes<T>) : load_part(row + first, left);
  }
  LAVAGNA_INLINE void put(T* row, int i, Vec<T> v) const {
    if constexpr (whole) return store(row + first + i * lanes<T>, v);
    store_part(row + first, v, left);
  }
  LAVAGNA_INLINE Vec<T> get_or_zero(const T* row, int i) const { return row == nullptr ? Vec<T>{} : get(row, i); }
};

// Do something with all channels of a strip, some vectors of them together: chains of dependent operations are long
// here, and the processor looks ahead only so far. `use` gets the channels, and the number of their first vector.
template <class T, class Use>
LAVAGNA_INLINE void in_vectors(const Block& block, const Use& use) {
  constexpr int many = LAVAGNA_VECTOR_BYTES == 64 ? 4 : 2;
  std::int64_t v = 0;
  for (; (v + many) * lanes<T> <= block.width; v += many) use(Channels<T, many, true>(block, v), v);
  for (; (v + 1) * lanes<T> <= block.width; ++v) use(Channels<T, 1, true>(block, v), v);
  if (v * lanes<T> < block.width) use(Channels<T, 1, false>(block, v), v);
}

// Rows of an input from one token on.
template <class T>
struct From {
  const T* first;
  std::int64_t step;

  From(const Rows<T>& rows, std::int64_t row)
      : first(rows.data == nullptr ? nullptr : rows.data + row * rows.row), step(rows.row) {}

  LAVAGNA_INLINE const T* at(std::int64_t t) const { return first + t * step; }
};

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

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
