// Decays inside a chunk of tokens: what token i still sees of what token j wrote, forward and backward.
//
// Only decays ≤ 1 are multiplied, each made from the tokens that it spans: nothing is divided, no long sums are
// subtracted, so that a log decay of −1e4 leaves its neighbours their digits. The same holds for the gradients: that
// of a token's log decay is a sum over the pairs of tokens between which it stands.
//
// `before`: a token reads before its own decay and writing (RWKV-6); what it sees of j < i has then faded by the
// tokens j + 1 … i − 1, and it does not see itself. Otherwise by j + 1 … i, j ≤ i.
#pragma once

#include "product.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// ---- one decay per token ------------------------------------------------------------------------------------------

// Tokens of the longest chunk.
constexpr std::int64_t longest_chunk = 128;

template <class T>
void decays(std::int64_t count, const T* log_decay, T* decay) {
  std::int64_t i = 0;
  for (; i + lanes<T> <= count; i += lanes<T>) store(decay + i, exp<T>(load(log_decay + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    store_part(decay + i, exp<T>(load_part(log_decay + i, rest)), rest);
  }
}

// Decays of a chunk of `tokens` (at most longest_chunk) tokens with log decays g:
//
//     between_ij = exp(g_{j+1} + … + g_i) for j ≤ i, else 0      read_i = exp(g_0 + … + g_i)
//     write_j = exp(g_{j+1} + … + g_{C−1})                       returned: the total exp(g_0 + … + g_{C−1})
//
// `row`, the length of the rows of between, is a multiple of lanes<T> and at least C; read and write have `row`
// numbers.
template <class T, bool before>
T segments(std::int64_t tokens, const T* log_decay, T* between, std::int64_t row, T* read, T* write) {
  constexpr int wide = lanes<T>;
  T decay[longest_chunk];
  decays(tokens, log_decay, decay);
  Vec<T> left[longest_chunk / wide] = {};  // of column j: decays of the tokens j + 1 … i; 0 above the diagonal
  for (std::int64_t j = 0; j < row; j += wide) store(read + j, Vec<T>{});
  T since = 1;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t last = i / wide;
    const auto put = [&] {
      read[i] = since;
      for (std::int64_t v = 0; v < row / wide; ++v)
        store(between + i * row + v * wide, v <= last ? left[v] : Vec<T>{});
    };
    if (before) put();
    since *= decay[i];
    for (std::int64_t v = 0; v <= last; ++v) left[v] *= decay[i];
    left[last] =
        lane_numbers<T>() == static_cast<typename Number<T>::Int>(i - last * wide) ? splat(T(1)) : left[last];
    if (!before) put();
  }
  for (std::int64_t j = 0; j < row; j += wide) store(write + j, left[j / wide]);
  return since;
}

// d_log_decay += its gradient through `segments`, from d(between) ∘ between [C, row], zeros above the diagonal,
// d(read) ∘ read [row], d(write) ∘ write [row] and d(total) · total.
template <class T, bool before>
void segments_backward(std::int64_t tokens, const T* between, std::int64_t row, const T* read, const T* write, T total,
                       T* d_log_decay) {
  constexpr int wide = lanes<T>;
  // Token l fades what the tokens before it wrote: of column j < l the rows i ≥ l (i > l where reading comes first).
  Vec<T> below[longest_chunk / wide] = {};
  T reads = total;
  for (std::int64_t l = tokens - 1; l >= 0; --l) {
    const std::int64_t last = l / wide;
    const auto add = [&] {
      reads += read[l];
      for (std::int64_t v = 0; v <= last; ++v) below[v] += load(between + l * row + v * wide);
    };
    if (!before) add();
    Vec<T> pairs{};
    for (std::int64_t v = 0; v < last; ++v) pairs += below[v] + load(write + v * wide);
    const auto earlier = lane_numbers<T>() < static_cast<typename Number<T>::Int>(l - last * wide);
    pairs += earlier ? below[last] + load(write + last * wide) : Vec<T>{};
    d_log_decay[l] += reads + sum<T>(pairs);
    if (before) add();
  }
}

// ---- one decay per token and channel ------------------------------------------------------------------------------
//
// The chunk is cut into sub-blocks of 16 tokens. Pairs inside one are visited one by one, channels in the lanes. A row
// and a column of different sub-blocks meet at the start of the row's: the row has faded since there, the column up to
// there, so that all these pairs are one matrix product.

constexpr std::int64_t sub_block = 16;

// A chunk of C tokens, a multiple of 16 (what is missing: rows and columns of 0, log decays of 0). Matrices are [C, K]
// by rows of K numbers, K a multiple of lanes<T> (what is missing: 0). `sets` sets of rows read, one of columns is
// read.
template <class T, int sets>
struct ChannelDecay {
  std::int64_t tokens;    // C
  std::int64_t channels;  // K
  std::int64_t row;       // of the scores, a multiple of lanes<T>, ≥ C

  // given
  const T* log_decay;
  const T* rows[sets];
  const T* column;

  // made by absorb
  T* decay;          // [C, K] e^log_decay
  T* blocks;         // [C / 16, K], decay of each sub-block
  T* since[sets];    // rows, faded since the start of their sub-block
  T* until;          // columns, faded to the end of their sub-block
  T* reading[sets];  // rows, faded since the start of the chunk: they read the state before it
  T* writing;        // columns, faded to the end of the chunk: they write the state behind it
  T* total;          // [K], decay of the chunk
  T* scores[sets];   // [C, row], Σ_c row_ic · exp(Σ_l log_decay_lc) · column_jc; 0 above the diagonal
  T* turned;         // [K, C], for intermediate results
};

// Gradients of a ChannelDecay: given those of what was made, made those of what was given.
template <class T, int sets>
struct ChannelDecayGradients {
  const T* scores[sets];   // [C, row]; what stands above the diagonal is not read
  T* reading[sets];        // overwritten
  T* writing;              // overwritten
  const T* log_total;      // [K], d(total) ∘ total
  T* rows[sets];
  T* column;
  T* log_decay;
};

// Numbers that a ChannelDecay's arrays take together.
template <class T, int sets>
constexpr std::int64_t channel_decay_size(std::int64_t tokens, std::int64_t channels, std::int64_t row) {
  return tokens * channels * (4 + 2 * sets) + (tokens / sub_block + 1) * channels + sets * tokens * row;
}

// Let the arrays of x lie in `memory`, and return what is behind them.
template <class T, int sets>
T* place(ChannelDecay<T, sets>& x, T* memory) {
  const auto take = [&](std::int64_t count) {
    T* const start = memory;
    memory += count;
    return start;
  };
  const std::int64_t matrix = x.tokens * x.channels;
  x.decay = take(matrix);
  x.until = take(matrix);
  x.writing = take(matrix);
  x.turned = take(matrix);
  for (int s = 0; s < sets; ++s) {
    x.since[s] = take(matrix);
    x.reading[s] = take(matrix);
    x.scores[s] = take(x.tokens * x.row);
  }
  x.blocks = take(x.tokens / sub_block * x.channels);
  x.total = take(x.channels);
  return memory;
}

// Scores between the tokens of one sub-block, turned around: row j of `turned` has those of column j, while its
// writing fades token by token.
template <class T, bool before, int j = 0>
LAVAGNA_INLINE void scores_inside(std::int64_t channels, const T* rows, const T* column, const T* decay, T* turned) {
  constexpr int wide = lanes<T>;
  constexpr int shift = before ? 1 : 0;  // row i + shift reads what token i left
  Vec<T> reads[sub_block] = {};
  for (std::int64_t c = 0; c < channels; c += wide) {
    Vec<T> written = load(column + j * channels + c);
    LAVAGNA_UNROLL
    for (int i = j; i < sub_block - shift; ++i) {
      if (i > j) written *= load(decay + i * channels + c);
      reads[i + shift] += load(rows + (i + shift) * channels + c) * written;
    }
  }
  LAVAGNA_UNROLL
  for (int i = 0; i < sub_block; i += wide) store(turned + j * sub_block + i, sums<T>(reads + i));
  if constexpr (j + 1 < sub_block) scores_inside<T, before, j + 1>(channels, rows, column, decay, turned);
}

// to_i = from_i ∘ factor for `count` rows, which may be the same.
template <class T>
void fade(std::int64_t count, std::int64_t channels, const T* from, const T* factor, T* to) {
  for (std::int64_t c = 0; c < channels; c += lanes<T>) {
    const Vec<T> f = load(factor + c);
    for (std::int64_t i = 0; i < count; ++i) store(to + i * channels + c, load(from + i * channels + c) * f);
  }
}

template <class T, bool before, int sets>
void absorb(const ChannelDecay<T, sets>& x) {
  constexpr int wide = lanes<T>;
  const std::int64_t K = x.channels, block = sub_block * K;
  decays(x.tokens * K, x.log_decay, x.decay);
  for (std::int64_t c = 0; c < K; c += wide) store(x.total + c, splat(T(1)));

  for (std::int64_t b = 0; b < x.tokens / sub_block; ++b) {
    const T* const decay = x.decay + b * block;
    T* const whole = x.blocks + b * K;
    for (std::int64_t c = 0; c < K; c += wide) {
      Vec<T> since = splat(T(1));
      const Vec<T> start = load(x.total + c);
      for (std::int64_t i = 0; i < block; i += K) {
        if (!before) since *= load(decay + i + c);
        for (int s = 0; s < sets; ++s) {
          const Vec<T> faded = load(x.rows[s] + b * block + i + c) * since;
          store(x.since[s] + b * block + i + c, faded);
          store(x.reading[s] + b * block + i + c, faded * start);
        }
        if (before) since *= load(decay + i + c);
      }
      store(whole + c, since);
      store(x.total + c, start * since);
      Vec<T> until = splat(T(1));
      for (std::int64_t i = block - K; i >= 0; i -= K) {
        const Vec<T> faded = load(x.column + b * block + i + c) * until;
        store(x.until + b * block + i + c, faded);
        store(x.writing + b * block + i + c, faded);
        until *= load(decay + i + c);
      }
    }

    // `writing` holds the columns of the sub-blocks before, faded up to the start of this one.
    const std::int64_t earlier = b * sub_block;
    if (earlier > 0) transpose(earlier, K, x.writing, K, x.turned, x.tokens);
    for (int s = 0; s < sets; ++s) {
      T* const scores = x.scores[s] + earlier * x.row;
      for (std::int64_t i = 0; i < sub_block; ++i)
        for (std::int64_t j = earlier + sub_block; j < x.row; ++j) scores[i * x.row + j] = 0;
      if (earlier > 0)
        product<T, Into::set>(sub_block, earlier, K, x.since[s] + b * block, K, 1, x.turned, x.tokens, scores, x.row);
      T turned[sub_block * sub_block];
      scores_inside<T, before>(K, x.rows[s] + b * block, x.column + b * block, decay, turned);
      transpose(sub_block, sub_block, turned, sub_block, scores + earlier, x.row);
    }
    fade(earlier, K, x.writing, whole, x.writing);
  }
}

// Gradients through scores_inside, added to those of rows, column and log decay; all of one sub-block, at `first` of
// matrices by channels and at d_score of the scores.
//
// With p_i what is left behind token i of column j, and u_i the gradient of p_i, both products along the tokens,
// d(row_{i+shift}) = d(score) p_i, d(column_j) = u_j, and token i, which made p_i of p_{i−1}, gets u_i p_i.
template <class T, bool before, int sets>
void scores_inside_backward(const ChannelDecay<T, sets>& x, const ChannelDecayGradients<T, sets>& d,
                            std::int64_t first, std::int64_t d_score) {
  constexpr int shift = before ? 1 : 0;
  constexpr int n = sub_block - shift;
  const std::int64_t K = x.channels;
  for (std::int64_t c = first; c < first + K; c += lanes<T>) {
    Vec<T> left[n * (n + 1) / 2];  // p of row i and column j ≤ i
    Vec<T> of[n];                  // of each column: p, then u
    LAVAGNA_UNROLL
    for (int i = 0; i < n; ++i) {
      const Vec<T> fading = load(x.decay + i * K + c);
      Vec<T> gradient[sets];
      for (int s = 0; s < sets; ++s) gradient[s] = load(d.rows[s] + (i + shift) * K + c);
      LAVAGNA_UNROLL
      for (int j = 0; j < n; ++j) {
        if (j > i) continue;
        of[j] = j < i ? of[j] * fading : load(x.column + j * K + c);
        left[i * (i + 1) / 2 + j] = of[j];
        for (int s = 0; s < sets; ++s) gradient[s] += d.scores[s][d_score + (i + shift) * x.row + j] * of[j];
      }
      for (int s = 0; s < sets; ++s) store(d.rows[s] + (i + shift) * K + c, gradient[s]);
    }
    LAVAGNA_UNROLL
    for (int back = 0; back < n; ++back) {
      const int i = n - 1 - back;
      const Vec<T> fading = load(x.decay + i * K + c);
      Vec<T> reader[sets];
      for (int s = 0; s < sets; ++s) reader[s] = load(x.rows[s] + (i + shift) * K + c);
      Vec<T> gradient = load(d.log_decay + i * K + c);
      LAVAGNA_UNROLL
      for (int j = 0; j < n; ++j) {
        if (j > i) continue;
        Vec<T> u = back > 0 ? of[j] : Vec<T>{};
        for (int s = 0; s < sets; ++s) u += d.scores[s][d_score + (i + shift) * x.row + j] * reader[s];
        if (j < i) gradient += u * left[i * (i + 1) / 2 + j];
        of[j] = j < i ? u * fading : u;
      }
      store(d.log_decay + i * K + c, gradient);
      store(d.column + i * K + c, load(d.column + i * K + c) + of[i]);
    }
  }
}

// The gradients of what x was made of; x as absorb left it. Changes x.writing and x.turned.
template <class T, bool before, int sets>
void absorb_backward(const ChannelDecay<T, sets>& x, const ChannelDecayGradients<T, sets>& d) {
  constexpr int wide = lanes<T>;
  const std::int64_t K = x.channels, block = sub_block * K;
  for (std::int64_t b = x.tokens / sub_block - 1; b >= 0; --b) {
    const std::int64_t earlier = b * sub_block;
    const T* const decay = x.decay + b * block;
    T* const through = x.turned;            // [K], what all tokens of this sub-block get
    T* const reads = x.turned + K;          // [K], what all tokens of this and earlier sub-blocks get
    T* const start = x.turned + 2 * K;      // [K], decay of the sub-blocks before
    T* const columns = x.writing;           // [earlier, K], faded to the start of this sub-block
    for (std::int64_t c = 0; c < K; c += wide) {
      if (earlier + sub_block == x.tokens) store(reads + c, load(d.log_total + c));
      Vec<T> product = splat(T(1));
      for (std::int64_t a = 0; a < b; ++a) product *= load(x.blocks + a * K + c);
      store(start + c, product);
      // The columns before: their gradients are those at the end of this sub-block, where they were faded once more.
      Vec<T> gets = load(reads + c);
      const Vec<T> whole = load(x.blocks + b * K + c);
      Vec<T> up_to = splat(T(1));  // decay between the end of sub-block a and the start of b
      for (std::int64_t a = b - 1; a >= 0; --a) {
        for (std::int64_t j = a * block; j < (a + 1) * block; j += K) {
          const Vec<T> faded = load(x.until + j + c) * up_to;
          const Vec<T> gradient = load(d.writing + j + c) * whole;
          gets += gradient * faded;
          store(columns + j + c, faded);
          store(d.writing + j + c, gradient);
        }
        up_to *= load(x.blocks + a * K + c);
      }
      store(through + c, gets);
    }

    for (int s = 0; s < sets; ++s) {
      // From the chunk's start to the sub-block's.
      T* const d_since = d.reading[s] + b * block;
      for (std::int64_t c = 0; c < K; c += wide) {
        Vec<T> gets = load(reads + c);
        const Vec<T> before_block = load(start + c);
        for (std::int64_t i = 0; i < block; i += K) {
          const Vec<T> gradient = load(d_since + i + c);
          gets += gradient * load(x.reading[s] + b * block + i + c);
          store(d_since + i + c, gradient * before_block);
        }
        store(reads + c, gets);
      }
      if (earlier == 0) continue;
      const T* const d_scores = d.scores[s] + earlier * x.row;
      product<T, Into::add>(sub_block, K, earlier, d_scores, x.row, 1, columns, K, d_since, K);
      product<T, Into::add>(earlier, K, sub_block, d_scores, 1, x.row, x.since[s] + b * block, K, d.writing, K);
    }

    // From the sub-block's borders to its tokens.
    T* const d_log_decay = d.log_decay + b * block;
    for (std::int64_t c = 0; c < K; c += wide) {
      Vec<T> gets = load(through + c);
      for (std::int64_t i = 0; i < block; i += K) {  // columns before token i fade by it
        store(d_log_decay + i + c, gets);
        gets += load(d.writing + b * block + i + c) * load(x.until + b * block + i + c);
      }
      gets = Vec<T>{};
      Vec<T> until = splat(T(1));
      for (std::int64_t i = block - K; i >= 0; i -= K) {  // rows behind token i, or at it, fade by it
        const std::int64_t at = b * block + i + c;
        Vec<T> here{};
        for (int s = 0; s < sets; ++s) here += load(d.reading[s] + at) * load(x.since[s] + at);
        if (!before) gets += here;
        store(d_log_decay + i + c, load(d_log_decay + i + c) + gets);
        if (before) gets += here;
        store(d.column + at, load(d.writing + at) * until);
        until *= load(decay + i + c);
      }
      Vec<T> since = splat(T(1));
      for (std::int64_t i = 0; i < block; i += K) {
        const std::int64_t at = b * block + i + c;
        if (!before) since *= load(decay + i + c);
        for (int s = 0; s < sets; ++s) store(d.rows[s] + at, load(d.reading[s] + at) * since);
        if (before) since *= load(decay + i + c);
      }
    }
    scores_inside_backward<T, before, sets>(x, d, b * block, earlier * (x.row + 1));
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
