// One chunk on the way back, behind its panels: what reaches queries, keys and log decays.
#pragma once

#include "gated_delta_backward_panel.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// What reaches queries and keys, and the log decays, of a chunk whose d_rows and d_keys are gradients of faded rows;
// afterwards d_rows are those of its rows. First without decays.
template <class T, class F>
void backward_plain(const Chunk<T>& chunk, std::int64_t row, BackwardScratch<T, F>& s) {
  for (std::int64_t c = 0; c < C * row; c += lanes<T>) store(s.d_rows + c, load(s.d_rows + c) + load(s.d_keys + c));
  product<T, Into::add>(2 * C, row, C, s.d_scores, C, 1, chunk.rows, row, s.d_rows, row);
  product<T, Into::add>(C, row, 2 * C, s.d_scores, 1, C, chunk.rows, row, s.d_rows, row);
}

template <class T, class F>
void backward_head(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, BackwardScratch<T, F>& s) {
  const std::int64_t row = padded<T>(a.keys);
  for (int i = 0; i < C; ++i)
    for (std::int64_t c = i * row; c < (i + 1) * row; c += lanes<T>) {
      store(s.d_rows + c, load(s.d_rows + c) * chunk.since[i]);
      store(s.d_rows + C * row + c, load(s.d_rows + C * row + c) * chunk.since[i]);
      store(s.d_keys + c, load(s.d_keys + c) * chunk.until[i]);
    }
  T by_keys[C], by_queries[C], leaving[C], gradient[C] = {};
  row_products(chunk.rows, s.d_rows, row, row, by_keys);
  row_products(chunk.rows + C * row, s.d_rows + C * row, row, row, by_queries);
  row_products(chunk.rows, s.d_keys, row, row, leaving);
  for (int i = 0; i < C; ++i) by_keys[i] += by_queries[i];
  Vec<T> through{};
  for (std::int64_t c = 0; c < a.keys; ++c) through += load(s.d_total + c * lanes<T>);
  segments_backward<T, false>(C, s.pairs, C, by_keys, leaving, sum<T>(through) * chunk.total[0], gradient);
  for (int i = 0; i < place.tokens; ++i) a.d_log_decay[(place.token + i) * a.heads + place.head] = gradient[i];
  backward_plain(chunk, row, s);
}

template <class T, class F>
void backward_channel(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, BackwardScratch<T, F>& s) {
  const std::int64_t row = padded<T>(a.keys);
  for (std::int64_t c = a.keys; c < row; ++c) store(s.d_total + c * lanes<T>, Vec<T>{});
  for (std::int64_t c = 0; c < row; c += lanes<T>) {
    Vec<T> parts[lanes<T>];
    LAVAGNA_UNROLL
    for (int i = 0; i < lanes<T>; ++i) parts[i] = load(s.d_total + (c + i) * lanes<T>);
    store(s.log_total + c, sums<T>(parts) * load(chunk.total + c));
  }
  ChannelDecayGradients<T, 2> d{};
  d.scores[0] = s.d_scores;
  d.scores[1] = s.d_scores + C * C;
  d.reading[0] = s.d_rows;
  d.reading[1] = s.d_rows + C * row;
  d.writing = s.d_keys;
  d.log_total = s.log_total;
  d.rows[0] = s.d_faded;
  d.rows[1] = s.d_faded + C * row;
  d.column = s.d_faded + 2 * C * row;
  d.log_decay = s.d_log;
  absorb_backward<T, false, 2>(channels_of(chunk, row, s.turned, s.scores), d);
  for (std::int64_t c = 0; c < C * row; c += lanes<T>) {
    store(s.d_rows + c, load(d.rows[0] + c) + load(d.column + c));
    store(s.d_rows + C * row + c, load(d.rows[1] + c));
  }
  for (int i = 0; i < place.tokens; ++i)
    put_row(a.d_log_decay + ((place.token + i) * a.heads + place.head) * a.keys, s.d_log + i * row, a.keys);
}

// Gradients of q or k from those of the chunk's rows: through scale and norm.
template <class T>
void store_rows(const GatedDelta<T>& a, const Place<T>& place, const T* from, std::int64_t from_row, T scale,
                const T* norm, const T* rows, const T* d_rows, T* to) {
  const std::int64_t row = padded<T>(a.keys);
  T along[C];  // y · dy for y = x / |x|: the part of the gradient that would change the length
  if (a.unit) row_products(rows, d_rows, row, row, along);
  for (int i = 0; i < place.tokens; ++i) {
    const T* x = from + (place.token + i) * from_row + place.key_head * a.keys;
    T* dx = to + ((place.token + i) * a.key_heads + place.key_head) * a.keys;
    const T factor = a.unit ? scale * norm[i] : scale;
    const T back = a.unit ? along[i] * norm[i] * norm[i] : T(0);
    for (std::int64_t c = 0; c < a.keys; c += lanes<T>) {
      const int count = a.keys - c < lanes<T> ? static_cast<int>(a.keys - c) : lanes<T>;
      const bool whole = count == lanes<T>;
      Vec<T> gradient = load(d_rows + i * row + c) * factor;
      if (a.unit) gradient -= (whole ? load(x + c) : load_part(x + c, count)) * back;
      if (!place.first_of_group) gradient += whole ? load(dx + c) : load_part(dx + c, count);
      if (whole)
        store(dx + c, gradient);
      else
        store_part(dx + c, gradient, count);
    }
  }
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
