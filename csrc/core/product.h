// Products of small matrices that lie in cache: what chunks of a recurrence are made of.
//
// Every matrix is stored by rows. Rows of B and C begin anywhere, but their length is a multiple of the vector
// (padded with zeros where the sizes at hand are none), so that there is no remainder of columns to treat.
#pragma once

#include "vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Rows and vectors of the block of C that is kept in registers: 16 accumulators of the 32 registers of AVX-512, 8 of
// the 16 that the other sets have.
constexpr int block_rows = LAVAGNA_VECTOR_BYTES == 64 ? 8 : 4;
constexpr int block_vectors = 2;

// What becomes of C: C = AB, C += AB, C −= AB.
enum class Into { set, add, subtract };

template <class T, Into into, int rows, int vectors>
LAVAGNA_INLINE void product_block(std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_step, const T* b,
                                  std::int64_t b_row, T* c, std::int64_t c_row) {
  constexpr int wide = lanes<T>;
  Vec<T> sums[rows][vectors];
  LAVAGNA_UNROLL
  for (int i = 0; i < rows; ++i)
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) sums[i][j] = into == Into::set ? Vec<T>{} : load(c + i * c_row + j * wide);
  for (std::int64_t p = 0; p < depth; ++p) {
    Vec<T> row[vectors];
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) row[j] = load(b + p * b_row + j * wide);
    LAVAGNA_UNROLL
    for (int i = 0; i < rows; ++i) {
      const Vec<T> x = splat(into == Into::subtract ? -a[i * a_row + p * a_step] : a[i * a_row + p * a_step]);
      LAVAGNA_UNROLL
      for (int j = 0; j < vectors; ++j) sums[i][j] += x * row[j];
    }
  }
  LAVAGNA_UNROLL
  for (int i = 0; i < rows; ++i)
    LAVAGNA_UNROLL
    for (int j = 0; j < vectors; ++j) store(c + i * c_row + j * wide, sums[i][j]);
}

template <class T, Into into, int vectors>
LAVAGNA_INLINE void product_columns(std::int64_t m, std::int64_t depth, const T* a, std::int64_t a_row,
                                    std::int64_t a_step, const T* b, std::int64_t b_row, T* c, std::int64_t c_row) {
  std::int64_t i = 0;
  for (; i + block_rows <= m; i += block_rows)
    product_block<T, into, block_rows, vectors>(depth, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row);
  if constexpr (block_rows > 4)
    for (; i + 4 <= m; i += 4)
      product_block<T, into, 4, vectors>(depth, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row);
  for (; i < m; ++i)
    product_block<T, into, 1, vectors>(depth, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row);
}

// C [m, n] = (or += or −=) A B, with A [m, depth] and B [depth, n], n a multiple of lanes<T>.
//
// Element (i, p) of A is a[i · a_row + p · a_step], so that a transposed A is given by its strides; b_row and c_row
// are the distances between rows of B and C.
template <class T, Into into>
void product(std::int64_t m, std::int64_t n, std::int64_t depth, const T* a, std::int64_t a_row, std::int64_t a_step,
             const T* b, std::int64_t b_row, T* c, std::int64_t c_row) {
  constexpr int columns = block_vectors * lanes<T>;
  std::int64_t j = 0;
  for (; j + columns <= n; j += columns)
    product_columns<T, into, block_vectors>(m, depth, a, a_row, a_step, b + j, b_row, c + j, c_row);
  for (; j < n; j += lanes<T>)
    product_columns<T, into, 1>(m, depth, a, a_row, a_step, b + j, b_row, c + j, c_row);
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

// The least multiple of a vector that holds n numbers: the row length of padded matrices.
template <class T>
constexpr std::int64_t padded(std::int64_t n) {
  return (n + lanes<T> - 1) / lanes<T> * lanes<T>;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
