// Products of small matrices that lie in cache: what chunks of a recurrence are made of.
//
// Every matrix is stored by rows. Rows of B and C begin anywhere, but their length is a multiple of the vector
// (padded with zeros where the sizes at hand are none), so that there is no remainder of columns to treat.
#pragma once

#include "factors.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Rows and vectors of the block of C that is kept in registers: 16 accumulators of the 32 registers of AVX-512, 8 of
// the 16 that the other sets have.
constexpr int block_rows = LAVAGNA_VECTOR_BYTES == 64 ? 8 : 4;
constexpr int block_vectors = 2;

// A block of C in registers. Kernels make a matrix of several products, or with factors, by letting the block see one
// after the other before it is stored.
template <class T, int rows, int vectors>
struct Tile {
  static constexpr int height = rows;
  Vec<T> x[rows][vectors];

  LAVAGNA_INLINE void take(const T* c, std::int64_t c_row) {
    LAVAGNA_UNROLL
    for (int i = 0; i < rows; ++i)
      LAVAGNA_UNROLL
      for (int j = 0; j < vectors; ++j) x[i][j] = load(c + i * c_row + j * lanes<T>);
  }

  LAVAGNA_INLINE void put(T* c, std::int64_t c_row) const {
    LAVAGNA_UNROLL
    for (int i = 0; i < rows; ++i)
      LAVAGNA_UNROLL
      for (int j = 0; j < vectors; ++j) store(c + i * c_row + j * lanes<T>, x[i][j]);
  }

  // Row i times factor[i].
  LAVAGNA_INLINE void scale(const T* factor) {
    LAVAGNA_UNROLL
    for (int i = 0; i < rows; ++i)
      LAVAGNA_UNROLL
      for (int j = 0; j < vectors; ++j) x[i][j] *= factor[i];
  }

  // Column j times factor[j].
  LAVAGNA_INLINE void scale_columns(const T* factor) {
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      const Vec<T> part = load(factor + j * lanes<T>);
      LAVAGNA_UNROLL
      for (int i = 0; i < rows; ++i) x[i][j] *= part;
    }
  }

  // Store it as factors of a product whose depth its rows are: `c` is the corner of the whole matrix, (i, j) its own.
  template <class F>
  LAVAGNA_INLINE void put_across([[maybe_unused]] F* c, [[maybe_unused]] std::int64_t c_row,
                                 [[maybe_unused]] std::int64_t i, [[maybe_unused]] std::int64_t j) const {
    if constexpr (per<F> == 2) {
      LAVAGNA_UNROLL
      for (int r = 0; r < rows; r += 2)
        LAVAGNA_UNROLL
        for (int v = 0; v < vectors; ++v) {
          Pair* const to = c + (i + r) / 2 * c_row + j + v * lanes<T>;
          if constexpr (rows > 1)
            store_pairs(to, pair_up(x[r][v], x[r + 1][v]));
          else if (i % 2 == 0)
            store_pairs(to, pair_up(x[r][v], Vec<T>{}));
          else
            store_pairs(to, load_factors(to) | pair_up(Vec<T>{}, x[r][v]));
        }
    }
  }

  // += A B, for factors A [rows, depth] with elements a[i · a_row + p · a_step], in so many steps.
  template <class F>
  LAVAGNA_INLINE void add(std::int64_t count, const F* a, std::int64_t a_row, std::int64_t a_step, const F* b,
                          std::int64_t b_row) {
    for (std::int64_t p = 0; p < count; ++p) {
      decltype(load_factors(b)) row[vectors];
      LAVAGNA_UNROLL
      for (int j = 0; j < vectors; ++j) row[j] = load_factors(b + p * b_row + j * lanes<T>);
      LAVAGNA_UNROLL
      for (int i = 0; i < rows; ++i) {
        const auto factor = spread_factor(a[i * a_row + p * a_step]);
        LAVAGNA_UNROLL
        for (int j = 0; j < vectors; ++j) add_product(x[i][j], factor, row[j]);
      }
    }
  }
};

template <class T, int vectors, class Visit>
LAVAGNA_INLINE void tile_rows(std::int64_t m, std::int64_t j, const Visit& visit) {
  const std::int64_t blocks = m - m % block_rows, fours = m - m % 4;
  std::int64_t i = 0;
  for (; i < blocks; i += block_rows) visit(Tile<T, block_rows, vectors>{}, i, j);
  for (; i < fours; i += 4) visit(Tile<T, 4, vectors>{}, i, j);
  for (; i < m; ++i) visit(Tile<T, 1, vectors>{}, i, j);
}

// Cover a matrix [m, n], n a multiple of lanes<T>: visit(tile, i, j) for tiles of zeros with corners (i, j), those of
// the first columns first. Tiles have at most block_rows rows.
template <class T, class Visit>
LAVAGNA_INLINE void tiles(std::int64_t m, std::int64_t n, const Visit& visit) {
  constexpr int columns = block_vectors * lanes<T>;
  std::int64_t j = 0;
  for (; j + columns <= n; j += columns) tile_rows<T, block_vectors>(m, j, visit);
  for (; j < n; j += lanes<T>) tile_rows<T, 1>(m, j, visit);
}

// About how many tiles cover it.
template <class T>
constexpr std::int64_t tile_count(std::int64_t m, std::int64_t n) {
  return ((m + block_rows - 1) / block_rows) * ((n + block_vectors * lanes<T> - 1) / (block_vectors * lanes<T>));
}

// What becomes of C: C = AB, C += AB.
enum class Into { set, add };

// C [m, n] = (or +=) A B, with A [m, depth] and B [depth, n] in so many steps of their factors, n a multiple of
// lanes<T>.
//
// Element (i, p) of A is a[i · a_row + p · a_step], so that a transposed A is given by its strides; b_row and c_row
// are the distances between rows of B and C.
template <class T, Into into, class F>
void product(std::int64_t m, std::int64_t n, std::int64_t count, const F* a, std::int64_t a_row, std::int64_t a_step,
             const F* b, std::int64_t b_row, T* c, std::int64_t c_row) {
  tiles<T>(m, n, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    if (into != Into::set) tile.take(c + i * c_row + j, c_row);
    tile.add(count, a + i * a_row, a_row, a_step, b + j, b_row);
    tile.put(c + i * c_row + j, c_row);
  });
}

// B [n, m] = A [m, n] turned around; rows of B hold at least m numbers.
template <class T>
void transpose(std::int64_t m, std::int64_t n, const T* a, std::int64_t a_row, T* b, std::int64_t b_row) {
  constexpr std::int64_t side = lanes<T>;
  for (std::int64_t i0 = 0; i0 < m; i0 += side)
    for (std::int64_t j0 = 0; j0 < n; j0 += side) {
      if (i0 + side <= m && j0 + side <= n) {
        Vec<T> square[side];
        LAVAGNA_UNROLL
        for (int i = 0; i < side; ++i) square[i] = load(a + (i0 + i) * a_row + j0);
        turn<T>(square);
        LAVAGNA_UNROLL
        for (int i = 0; i < side; ++i) store(b + (j0 + i) * b_row + i0, square[i]);
      } else {
        for (std::int64_t i = i0; i < i0 + side && i < m; ++i)
          for (std::int64_t j = j0; j < j0 + side && j < n; ++j) b[j * b_row + i] = a[i * a_row + j];
      }
    }
}

// The same of pairs.
LAVAGNA_INLINE void transpose(std::int64_t m, std::int64_t n, const Pair* a, std::int64_t a_row, Pair* b,
                              std::int64_t b_row) {
  transpose(m, n, reinterpret_cast<const float*>(a), a_row, reinterpret_cast<float*>(b), b_row);
}

// The least multiple of a vector that holds n numbers: the row length of padded matrices.
template <class T>
constexpr std::int64_t padded(std::int64_t n) {
  return (n + lanes<T> - 1) / lanes<T> * lanes<T>;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
