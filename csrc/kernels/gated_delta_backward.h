// The gated delta rule in chunks, backward: segment by segment from the last to the first.
#pragma once

#include "gated_delta_backward_rows.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T, class F>
void backward_chunk(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, const T* memory,
                    const T* errors, BackwardScratch<T, F>& s) {
  const std::int64_t row = padded<T>(a.keys);
  s.factors.backward(chunk, a.keys);
  backward_panel<T, F, Into::set>(a, place, chunk, memory, errors, 0, s);
  for (std::int64_t p = 1; p < panels<T>(a.values); ++p)
    backward_panel<T, F, Into::add>(a, place, chunk, memory, errors, p, s);

  T d_beta[C];
  for (int i0 = 0; i0 < C; i0 += lanes<T>) {
    Vec<T> parts[lanes<T>];
    LAVAGNA_UNROLL
    for (int i = 0; i < lanes<T>; ++i) parts[i] = load(s.d_beta + (i0 + i) * lanes<T>);
    store(d_beta + i0, sums<T>(parts));
  }
  for (int i = 0; i < place.tokens; ++i) a.d_beta[(place.token + i) * a.heads + place.head] = d_beta[i];

  transpose(a.keys, 2 * C, s.d_in, 2 * C, s.d_rows, row);
  transpose(a.keys, C, s.d_out, C, s.d_keys, row);
  for (std::int64_t c = a.keys; c < row; ++c) {
    for (int i = 0; i < 2 * C; ++i) s.d_rows[i * row + c] = 0;
    for (int i = 0; i < C; ++i) s.d_keys[i * row + c] = 0;
  }
  for (int j = 0; j < C; j += lanes<T>)
    for (int i = 0; i < C; ++i) {
      const Vec<T> kk = before_column<T>(j, i) ? load(s.d_scores + i * C + j) : Vec<T>{};
      const Vec<T> qk = before_column<T>(j, i + 1) ? load(s.d_scores + (C + i) * C + j) : Vec<T>{};
      const Vec<T> between = a.fading == Fading::head ? load(chunk.between + i * C + j) : splat(T(1));
      store(s.pairs + i * C + j, kk * load(chunk.kk + i * C + j) + qk * load(chunk.qk + i * C + j));
      store(s.d_scores + i * C + j, kk * between);
      store(s.d_scores + (C + i) * C + j, qk * between);
    }
  switch (a.fading) {
    case Fading::none:
      backward_plain(chunk, row, s);
      break;
    case Fading::head:
      backward_head(a, place, chunk, s);
      break;
    case Fading::channel:
      backward_channel(a, place, chunk, s);
      break;
  }

  store_rows(a, place, a.k, a.k_row, T(1), chunk.norm, chunk.rows, s.d_rows, a.dk);
  store_rows(a, place, a.q, a.q_row, a.scale, chunk.norm + C, chunk.rows + C * row, s.d_rows + C * row, a.dq);
}

// One segment: forward from the memory that was kept before it, then back.
template <class T, class F>
void backward_segment(const GatedDelta<T>& a, std::int64_t m, std::int64_t head, std::int64_t segment,
                      BackwardScratch<T, F>& s) {
  const std::int64_t group = a.heads / a.key_heads;
  const std::int64_t length = a.sequences.length(m);
  const std::int64_t begin = segment * gated_delta_segment;
  const std::int64_t end = length - begin < gated_delta_segment ? length : begin + gated_delta_segment;
  const std::int64_t chunks = (end - begin + a.chunk - 1) / a.chunk;
  const auto tokens = [&](std::int64_t n) {
    const std::int64_t left = end - begin - n * a.chunk;
    return n < 0 || left < 0 ? 0 : left < a.chunk ? left : a.chunk;
  };
  const auto place = [&](std::int64_t n) {
    const std::int64_t token = a.sequences.begin(m) + begin + n * a.chunk;
    return Place<T>{head, head / group, token, tokens(n), tokens(n + 1), tokens(n - 1), head % group == 0};
  };
  const std::int64_t kept = (gated_delta_first_segment(a.sequences, m) + segment) * a.heads + head;
  load_memory(a.kept + kept * a.keys * a.values, a.keys, a.values, 0, panels<T>(a.values), s.memories);
  pack_memory(s.memories, a.keys, panels<T>(a.values), s.memory_factors);
  for (std::int64_t n = 0; n < chunks; ++n) {
    const Place<T> here = place(n);
    const T* memory = s.memories + n * memory_size<T, T>(a);
    prepare(a, head, here.token, here.tokens, s.chunks[n], s.turned, s.scores);
    repeat_chunk(a, here, s.chunks[n], memory, s.errors + n * s.errors_size,
                 n + 1 < chunks ? s.memories + (n + 1) * memory_size<T, T>(a) : nullptr, s);
  }
  for (std::int64_t n = chunks; n-- > 0;)
    backward_chunk(a, place(n), s.chunks[n], s.memories + n * memory_size<T, T>(a), s.errors + n * s.errors_size, s);
}

// Tasks abreast, from the last segment to the first; the value heads of a key head in their order, so that the sums in
// dq and dk have one.
template <class T, class F>
void backward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedDelta<T>& a = *static_cast<const GatedDelta<T>*>(arguments);
  Pieces<T> pieces{a.scratch + thread * a.scratch_size};
  BackwardScratch<T, F> s(pieces, a);
  const std::int64_t group = a.heads / a.key_heads, most = tasks_abreast(a);
  const auto each = [&](std::int64_t task, const auto& visit) {
    std::int64_t n = 0;
    for (std::int64_t i = task; i < end && i < task + most; ++i)
      for (std::int64_t head = i / a.sequences.count * group; n < (i - task + 1) * group; ++n, ++head) {
        s.d_memory = s.d_memories + n * memory_size<T, T>(a);
        s.d_factors = s.d_memory_factors + n * memory_size<T, F>(a);
        visit(i % a.sequences.count, head);
      }
  };
  for (std::int64_t task = begin; task < end; task += most) {
    std::int64_t segments = 0;
    each(task, [&](std::int64_t m, std::int64_t head) {
      const std::int64_t own = (a.sequences.length(m) + gated_delta_segment - 1) / gated_delta_segment;
      segments = own > segments ? own : segments;
      load_memory(a.d_final_state + (m * a.heads + head) * a.keys * a.values, a.keys, a.values, 0,
                  panels<T>(a.values), s.d_memory);
      pack_memory(s.d_memory, a.keys, panels<T>(a.values), s.d_factors);
    });
    for (std::int64_t segment = segments; segment-- > 0;)
      each(task, [&](std::int64_t m, std::int64_t head) {
        if (segment * gated_delta_segment < a.sequences.length(m)) backward_segment(a, m, head, segment, s);
      });
    each(task, [&](std::int64_t m, std::int64_t head) {
      store_memory(s.d_memory, a.keys, a.values, 0, panels<T>(a.values),
                   a.d_state + (m * a.heads + head) * a.keys * a.values);
    });
  }
}

template <class T, class F>
std::int64_t backward_scratch(const GatedDelta<T>& a) {
  Pieces<T> pieces{nullptr};
  BackwardScratch<T, F>(pieces, a);
  return pieces.used;
}

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
