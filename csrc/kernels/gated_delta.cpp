// The gated delta rule in chunks, forward and backward, and token by token. docs/performance/gated_delta.md explains it.
#include "gated_delta.h"

#include "gated_delta_chunk.h"
#include "gated_delta_recurrent.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Columns of a memory are independent of each other once a chunk is prepared. A memory lies in scratch in panels of
// so many columns: all that a chunk does to a panel, three passes over it, finds it in L1.
template <class T>
constexpr std::int64_t panel = block_vectors * lanes<T>;

template <class T>
constexpr std::int64_t panels(std::int64_t values) {
  return (values + panel<T> - 1) / panel<T>;
}

// The columns of panel p: how many, and how many in whole vectors.
template <class T>
struct Columns {
  std::int64_t first, count, whole;

  Columns(std::int64_t p, std::int64_t values)
      : first(p * panel<T>),
        count(values - first < panel<T> ? values - first : panel<T>),
        whole(padded<T>(count)) {}
};

template <class T>
void load_memory(const T* from, std::int64_t keys, std::int64_t values, std::int64_t begin, std::int64_t end,
                 T* memory) {
  for (std::int64_t c = 0; c < keys; ++c)
    for (std::int64_t p = begin; p < end; ++p) {
      const Columns<T> columns(p, values);
      fill_row(memory + ((p - begin) * keys + c) * panel<T>, from + c * values + columns.first, columns.count);
    }
}

template <class T>
void store_memory(const T* memory, std::int64_t keys, std::int64_t values, std::int64_t begin, std::int64_t end,
                  T* to) {
  for (std::int64_t c = 0; c < keys; ++c)
    for (std::int64_t p = begin; p < end; ++p) {
      const Columns<T> columns(p, values);
      put_row(to + c * values + columns.first, memory + ((p - begin) * keys + c) * panel<T>, columns.count);
    }
}

// C rows of a tensor over time, one panel of them; zeros where there are no tokens.
template <class T>
LAVAGNA_INLINE void load_tile(const T* from, std::int64_t from_row, std::int64_t tokens, const Columns<T>& columns,
                              T* tile) {
  for (int i = 0; i < C; ++i) {
    if (i < tokens)
      fill_row(tile + i * panel<T>, from + i * from_row + columns.first, columns.count);
    else
      clear_row(tile + i * panel<T>, columns.whole);
  }
}

// One vector of columns of the errors: (I + kk_beta) E = V − K_in S.
template <class T>
LAVAGNA_INLINE void solve(const T* kk_beta, const T* v, const T* held, T* errors) {
  Vec<T> e[C];
  LAVAGNA_UNROLL
  for (int i = 0; i < C; ++i) {
    e[i] = load(v + i * panel<T>) - load(held + i * panel<T>);
    LAVAGNA_UNROLL
    for (int j = 0; j < C; ++j)
      if (j < i) e[i] -= kk_beta[i * C + j] * e[j];
    store(errors + i * panel<T>, e[i]);
  }
}

// Its adjoint: (I + beta_kk)ᵀ X = dU, from the last row to the first.
template <class T>
LAVAGNA_INLINE void solve_adjoint(const T* beta_kk, T* x) {
  Vec<T> e[C];
  LAVAGNA_UNROLL
  for (int back = 0; back < C; ++back) {
    const int j = C - 1 - back;
    e[j] = load(x + j * panel<T>);
    LAVAGNA_UNROLL
    for (int i = 0; i < C; ++i)
      if (i > j) e[j] -= beta_kk[i * C + j] * e[i];
    store(x + j * panel<T>, e[j]);
  }
}

// U = Diag(β) E.
template <class T>
LAVAGNA_INLINE void write_strength(const T* beta, const T* errors, std::int64_t whole, T* u) {
  for (int i = 0; i < C; ++i)
    for (std::int64_t j = 0; j < whole; j += lanes<T>)
      store(u + i * panel<T> + j, load(errors + i * panel<T> + j) * beta[i]);
}

// S_C = D_C0 S_0 + K_outᵀ U, one panel.
template <class T>
LAVAGNA_INLINE void advance(const Chunk<T>& chunk, std::int64_t keys, std::int64_t whole, const T* u, const T* from,
                            T* to) {
  const std::int64_t row = padded<T>(keys);
  tiles<T>(keys, whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    tile.take(from + i * panel<T> + j, panel<T>);
    tile.scale(chunk.total + i);
    tile.add(C, chunk.out + i, 1, row, u + j, panel<T>);
    tile.put(to + i * panel<T> + j, panel<T>);
  });
}

// Ask for what lies in rows of a tensor over time, too far apart for the processor to guess, before it is needed: a
// share of the rows while each panel of the chunk before is worked on.
template <class T>
struct Ahead {
  std::int64_t token, tokens;  // what is asked for
  std::int64_t part, parts;

  template <bool write = false>
  LAVAGNA_INLINE void ask(const T* from, std::int64_t row, std::int64_t count) const {
    for (std::int64_t i = tokens * part / parts; i < tokens * (part + 1) / parts; ++i)
      for (std::int64_t j = 0; j < count; j += 64 / sizeof(T))
        __builtin_prefetch(from + (token + i) * row + j, write, 2);
  }
};

// Memories that a thread takes through time side by side, chunk by chunk or segment by segment: tokens of several heads
// lie in the same pages, and are read while these are at hand. As many as leave L2 to the rest.
constexpr std::int64_t most_abreast = 16;

template <class T>
constexpr std::int64_t abreast(const GatedDelta<T>& a) {
  const std::int64_t fit = (std::int64_t(256) << 10) / (a.keys * a.values * static_cast<std::int64_t>(sizeof(T)));
  return fit < 1 ? 1 : fit > most_abreast ? most_abreast : fit;
}

// The same for tasks that are key heads with all their value heads.
template <class T>
constexpr std::int64_t tasks_abreast(const GatedDelta<T>& a) {
  const std::int64_t tasks = abreast(a) / (a.heads / a.key_heads);
  return tasks < 1 ? 1 : tasks;
}

// Forward ---------------------------------------------------------------------------------------------------

template <class T>
struct ForwardScratch {
  T* memories;  // of each abreast, panels [K, panel]
  T* turned;  // [K, C]
  T* scores;  // [2C, C]
  T* v;       // [C, panel]
  T* y;       // [C, panel]
  T* errors;  // [C, panel]
  T* u;       // [C, panel]
  Chunk<T> chunk;

  ForwardScratch(Pieces<T>& pieces, const GatedDelta<T>& a)
      : memories(pieces.take(abreast(a) * panels<T>(a.values) * a.keys * panel<T>)),
        turned(pieces.take(padded<T>(a.keys) * C)),
        scores(pieces.take(2 * C * C)),
        v(pieces.take(C * panel<T>)),
        y(pieces.take(C * panel<T>)),
        errors(pieces.take(C * panel<T>)),
        u(pieces.take(C * panel<T>)),
        chunk(pieces, a.keys, a.fading) {}
};

// The columns [begin, end), in panels, of one memory on its way through one sequence.
template <class T>
struct Way {
  std::int64_t head, key_head;
  std::int64_t begin, end;
  std::int64_t first, length;  // of the sequence's tokens
  std::int64_t at;             // where its states begin
  T* kept;
  T* memory;

  Way() = default;
  Way(const GatedDelta<T>& a, std::int64_t task, T* its_memory) : memory(its_memory) {
    const std::int64_t m = task % a.sequences.count;
    const std::int64_t block = task / a.sequences.count % a.blocks;
    head = task / a.sequences.count / a.blocks;
    key_head = head / (a.heads / a.key_heads);
    begin = panels<T>(a.values) * block / a.blocks;
    end = panels<T>(a.values) * (block + 1) / a.blocks;
    first = a.sequences.begin(m);
    length = a.sequences.length(m);
    at = (m * a.heads + head) * a.keys * a.values;
    kept = a.kept == nullptr
               ? nullptr
               : a.kept + (gated_delta_first_segment(a.sequences, m) * a.heads + head) * a.keys * a.values;
  }
};

template <class T>
void forward_chunk(const GatedDelta<T>& a, const Way<T>& way, std::int64_t t, ForwardScratch<T>& s) {
  const std::int64_t row = padded<T>(a.keys);
  const std::int64_t left = way.length - t;
  const std::int64_t token = way.first + t, tokens = left < a.chunk ? left : a.chunk;
  const std::int64_t next = left - tokens < a.chunk ? left - tokens : a.chunk;
  const Chunk<T>& chunk = s.chunk;
  prepare(a, way.head, token, tokens, chunk, s.turned, s.scores);
  for (std::int64_t p = way.begin; p < way.end; ++p) {
    const Columns<T> columns(p, a.values);
    T* memory = way.memory + (p - way.begin) * a.keys * panel<T>;
    const Ahead<T> ahead{token + tokens, next, p - way.begin, way.end - way.begin};
    ahead.ask(a.k + way.key_head * a.keys, a.k_row, a.keys);
    ahead.ask(a.q + way.key_head * a.keys, a.q_row, a.keys);
    ahead.ask(a.v + way.head * a.values, a.v_row, a.values);
    ahead.template ask<true>(a.o + way.head * a.values, a.heads * a.values, a.values);
    load_tile(a.v + token * a.v_row + way.head * a.values, a.v_row, tokens, columns, s.v);
    product<T, Into::set>(C, columns.whole, a.keys, chunk.in, row, 1, memory, panel<T>, s.y, panel<T>);
    for (std::int64_t j = 0; j < columns.whole; j += lanes<T>) solve(chunk.kk_beta, s.v + j, s.y + j, s.errors + j);
    write_strength(chunk.beta, s.errors, columns.whole, s.u);
    // O = Q_in S + P U, P lower triangular.
    tiles<T>(C, columns.whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
      tile.add(a.keys, chunk.in + (C + i) * row, row, 1, memory + j, panel<T>);
      tile.add(i + block_rows, chunk.qk + i * C, C, 1, s.u + j, panel<T>);
      tile.put(s.y + i * panel<T> + j, panel<T>);
    });
    for (int i = 0; i < tokens; ++i)
      put_row(a.o + ((token + i) * a.heads + way.head) * a.values + columns.first, s.y + i * panel<T>, columns.count);
    advance(chunk, a.keys, columns.whole, s.u, memory, memory);
  }
}

template <class T>
void forward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedDelta<T>& a = *static_cast<const GatedDelta<T>*>(arguments);
  Pieces<T> pieces{a.scratch + thread * a.scratch_size};
  ForwardScratch<T> s(pieces, a);
  const std::int64_t most = abreast(a), memory_size = panels<T>(a.values) * a.keys * panel<T>;
  Way<T> ways[most_abreast];
  for (std::int64_t task = begin; task < end; task += most) {
    const std::int64_t count = end - task < most ? end - task : most;
    std::int64_t longest = 0;
    for (std::int64_t n = 0; n < count; ++n) {
      Way<T>& way = ways[n] = Way<T>(a, task + n, s.memories + n * memory_size);
      load_memory(a.state + way.at, a.keys, a.values, way.begin, way.end, way.memory);
      longest = way.length > longest ? way.length : longest;
    }
    for (std::int64_t t = 0; t < longest; t += a.chunk)
      for (std::int64_t n = 0; n < count; ++n) {
        const Way<T>& way = ways[n];
        if (t >= way.length) continue;
        if (way.kept != nullptr && t % gated_delta_segment == 0)
          store_memory(way.memory, a.keys, a.values, way.begin, way.end,
                       way.kept + t / gated_delta_segment * a.heads * a.keys * a.values);
        forward_chunk(a, way, t, s);
      }
    for (std::int64_t n = 0; n < count; ++n)
      store_memory(ways[n].memory, a.keys, a.values, ways[n].begin, ways[n].end, a.final_state + ways[n].at);
  }
}

template <class T>
std::int64_t forward_scratch(const GatedDelta<T>& a) {
  Pieces<T> pieces{nullptr};
  ForwardScratch<T>(pieces, a);
  return pieces.used;
}

// Backward --------------------------------------------------------------------------------------------------

template <class T>
struct BackwardScratch {
  static constexpr int most = gated_delta_segment;  // chunks of a segment, where they have one token

  std::int64_t memory_size, errors_size;
  Chunk<T> chunks[most];
  T* d_memories;  // of each abreast, panels [K, panel]: dS after the chunk, then before it
  T* d_memory;    // the one at hand
  T* memories;    // S before each chunk of a segment
  T* errors;      // E of each chunk of a segment, panels [C, panel]
  T* turned;      // [K, C]
  T* scores;      // [2C, C]
  T* v;           // [C, panel]
  T* y;           // [C, panel]
  T* u;           // [C, panel]
  T* ups;         // [2C, panel], gradients of what is read by keys (−dW) and by queries (dO)
  T* turned_ups;  // [panel, 2C]
  T* turned_u;    // [panel, C]
  T* d_in;        // [K, 2C], S_0 upsᵀ
  T* d_out;       // [K, C], dS_C Uᵀ
  T* d_scores;    // [2C, C], ups Uᵀ
  T* pairs;       // [C, C], d(D_ij) ∘ D_ij of a head
  T* d_beta;      // [C, lanes], parts of dβ
  T* d_total;     // [K, lanes], parts of Σ_v S_0 ∘ dS_C
  T* d_rows;      // [2C, K]
  T* d_keys;      // [C, K], of keys as they are written
  T* d_faded;     // [3C, K], of channels: of keys that read, queries, keys that are read
  T* d_log;       // [C, K], of channels
  T* log_total;   // [K], of channels

  BackwardScratch(Pieces<T>& pieces, const GatedDelta<T>& a)
      : memory_size(panels<T>(a.values) * a.keys * panel<T>), errors_size(panels<T>(a.values) * C * panel<T>) {
    const std::int64_t row = padded<T>(a.keys);
    const std::int64_t count = gated_delta_segment / a.chunk;
    for (std::int64_t n = 0; n < count; ++n) chunks[n] = Chunk<T>(pieces, a.keys, a.fading);
    d_memories = pieces.take(memory_size * tasks_abreast(a) * (a.heads / a.key_heads));
    memories = pieces.take(memory_size * count);
    errors = pieces.take(errors_size * count);
    turned = pieces.take(row * C);
    scores = pieces.take(2 * C * C);
    v = pieces.take(C * panel<T>);
    y = pieces.take(C * panel<T>);
    u = pieces.take(C * panel<T>);
    ups = pieces.take(2 * C * panel<T>);
    turned_ups = pieces.take(panel<T> * 2 * C);
    turned_u = pieces.take(panel<T> * C);
    d_in = pieces.take(a.keys * 2 * C);
    d_out = pieces.take(a.keys * C);
    d_scores = pieces.take(2 * C * C);
    pairs = pieces.take(C * C);
    d_beta = pieces.take(C * lanes<T>);
    d_total = pieces.take(row * lanes<T>);
    d_rows = pieces.take(2 * C * row);
    d_keys = pieces.take(C * row);
    if (a.fading != Fading::channel) return;
    d_faded = pieces.take(3 * C * row);
    d_log = pieces.take(C * row);
    log_total = pieces.take(row);
  }
};

// What one chunk is about.
template <class T>
struct Place {
  std::int64_t head, key_head;
  std::int64_t token;   // the first, among all rows
  std::int64_t tokens;  // of the chunk
  std::int64_t follow;  // of the next one in the segment
  std::int64_t before;  // of the one before
  bool first_of_group;  // the first value head of its key head: sets dq and dk, the others add to them
};

// Errors of a chunk, and the memory behind it where it is asked for.
template <class T>
void repeat_chunk(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, const T* memory, T* errors,
                  T* next, BackwardScratch<T>& s) {
  const std::int64_t row = padded<T>(a.keys);
  for (std::int64_t p = 0; p < panels<T>(a.values); ++p) {
    const Columns<T> columns(p, a.values);
    const T* from = memory + p * a.keys * panel<T>;
    T* e = errors + p * C * panel<T>;
    const Ahead<T> next_chunk{place.token + place.tokens, place.follow, p, panels<T>(a.values)};
    next_chunk.ask(a.k + place.key_head * a.keys, a.k_row, a.keys);
    next_chunk.ask(a.q + place.key_head * a.keys, a.q_row, a.keys);
    next_chunk.ask(a.v + place.head * a.values, a.v_row, a.values);
    load_tile(a.v + place.token * a.v_row + place.head * a.values, a.v_row, place.tokens, columns, s.v);
    product<T, Into::set>(C, columns.whole, a.keys, chunk.in, row, 1, from, panel<T>, s.y, panel<T>);
    for (std::int64_t j = 0; j < columns.whole; j += lanes<T>) solve(chunk.kk_beta, s.v + j, s.y + j, e + j);
    if (next == nullptr) continue;
    write_strength(chunk.beta, e, columns.whole, s.u);
    advance(chunk, a.keys, columns.whole, s.u, from, next + p * a.keys * panel<T>);
  }
}

// Through one panel: dv, the part of dS_0, and sums over columns for everything else.
template <class T, Into into>
void backward_panel(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, const T* memory,
                    const T* errors, std::int64_t p, BackwardScratch<T>& s) {
  const std::int64_t row = padded<T>(a.keys);
  const Columns<T> columns(p, a.values);
  const T* s_0 = memory + p * a.keys * panel<T>;
  const T* e = errors + p * C * panel<T>;
  T* d_s = s.d_memory + p * a.keys * panel<T>;
  T* d_o = s.ups + C * panel<T>;
  T* x = s.v;
  const Ahead<T> now{place.token, place.tokens, p, panels<T>(a.values)};
  const Ahead<T> next{place.token - place.before, place.before, p, panels<T>(a.values)};
  now.template ask<true>(a.dk + place.key_head * a.keys, a.key_heads * a.keys, a.keys);
  now.template ask<true>(a.dq + place.key_head * a.keys, a.key_heads * a.keys, a.keys);
  next.ask(a.d_o + place.head * a.values, a.d_o_row, a.values);
  next.template ask<true>(a.dv + place.head * a.values, a.heads * a.values, a.values);
  load_tile(a.d_o + place.token * a.d_o_row + place.head * a.values, a.d_o_row, place.tokens, columns, d_o);

  // dU = Pᵀ dO + K_out dS_C; then X = dU through the system, dW = β X is also dv, and dβ = Σ_v X ∘ E.
  tiles<T>(C, columns.whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    tile.add(a.keys, chunk.out + i * row, row, 1, d_s + j, panel<T>);
    tile.add(C - i, chunk.qk + i * C + i, 1, C, d_o + i * panel<T> + j, panel<T>);
    tile.put(x + i * panel<T> + j, panel<T>);
  });
  for (std::int64_t j = 0; j < columns.whole; j += lanes<T>) solve_adjoint(chunk.beta_kk, x + j);
  for (int i = 0; i < C; ++i) {
    Vec<T> d_beta = into == Into::set ? Vec<T>{} : load(s.d_beta + i * lanes<T>);
    for (std::int64_t j = i * panel<T>; j < i * panel<T> + columns.whole; j += lanes<T>) {
      const Vec<T> x_i = load(x + j);
      const Vec<T> e_i = load(e + j);
      d_beta += x_i * e_i;
      store(s.u + j, e_i * chunk.beta[i]);
      store(x + j, x_i * chunk.beta[i]);
      store(s.ups + j, x_i * -chunk.beta[i]);
    }
    store(s.d_beta + i * lanes<T>, d_beta);
    if (i < place.tokens)
      put_row(a.dv + ((place.token + i) * a.heads + place.head) * a.values + columns.first, x + i * panel<T>,
              columns.count);
  }

  if (a.fading != Fading::none)
    for (std::int64_t c = 0; c < a.keys; ++c) {
      Vec<T> sum = into == Into::set ? Vec<T>{} : load(s.d_total + c * lanes<T>);
      for (std::int64_t j = c * panel<T>; j < c * panel<T> + columns.whole; j += lanes<T>)
        sum += load(s_0 + j) * load(d_s + j);
      store(s.d_total + c * lanes<T>, sum);
    }

  // Sums over columns: S_0 upsᵀ and dS_C Uᵀ by channels, ups Uᵀ by tokens.
  transpose(2 * C, columns.whole, s.ups, panel<T>, s.turned_ups, 2 * C);
  transpose(C, columns.whole, s.u, panel<T>, s.turned_u, C);
  product<T, into>(a.keys, 2 * C, columns.count, s_0, panel<T>, 1, s.turned_ups, 2 * C, s.d_in, 2 * C);
  product<T, into>(a.keys, C, columns.count, d_s, panel<T>, 1, s.turned_u, C, s.d_out, C);
  product<T, into>(2 * C, C, columns.count, s.ups, panel<T>, 1, s.turned_u, C, s.d_scores, C);

  // dS_0 = D_C0 dS_C + Q_inᵀ dO − K_inᵀ dW
  tiles<T>(a.keys, columns.whole, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
    T* d = d_s + i * panel<T> + j;
    tile.take(d, panel<T>);
    tile.scale(chunk.total + i);
    tile.add(2 * C, chunk.in + i, 1, row, s.ups + j, panel<T>);
    tile.put(d, panel<T>);
  });
}

// What reaches queries and keys, and the log decays, of a chunk whose d_rows and d_keys are gradients of faded rows;
// afterwards d_rows are those of its rows. First without decays.
template <class T>
void backward_plain(const Chunk<T>& chunk, std::int64_t row, BackwardScratch<T>& s) {
  for (std::int64_t c = 0; c < C * row; c += lanes<T>) store(s.d_rows + c, load(s.d_rows + c) + load(s.d_keys + c));
  product<T, Into::add>(2 * C, row, C, s.d_scores, C, 1, chunk.rows, row, s.d_rows, row);
  product<T, Into::add>(C, row, 2 * C, s.d_scores, 1, C, chunk.rows, row, s.d_rows, row);
}

template <class T>
void backward_head(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, BackwardScratch<T>& s) {
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

template <class T>
void backward_channel(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, BackwardScratch<T>& s) {
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

template <class T>
void backward_chunk(const GatedDelta<T>& a, const Place<T>& place, const Chunk<T>& chunk, const T* memory,
                    const T* errors, BackwardScratch<T>& s) {
  const std::int64_t row = padded<T>(a.keys);
  backward_panel<T, Into::set>(a, place, chunk, memory, errors, 0, s);
  for (std::int64_t p = 1; p < panels<T>(a.values); ++p)
    backward_panel<T, Into::add>(a, place, chunk, memory, errors, p, s);

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
template <class T>
void backward_segment(const GatedDelta<T>& a, std::int64_t m, std::int64_t head, std::int64_t segment,
                      BackwardScratch<T>& s) {
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
  for (std::int64_t n = 0; n < chunks; ++n) {
    const Place<T> here = place(n);
    const T* memory = s.memories + n * s.memory_size;
    prepare(a, head, here.token, here.tokens, s.chunks[n], s.turned, s.scores);
    repeat_chunk(a, here, s.chunks[n], memory, s.errors + n * s.errors_size,
                 n + 1 < chunks ? s.memories + (n + 1) * s.memory_size : nullptr, s);
  }
  for (std::int64_t n = chunks; n-- > 0;)
    backward_chunk(a, place(n), s.chunks[n], s.memories + n * s.memory_size, s.errors + n * s.errors_size, s);
}

// Tasks abreast, from the last segment to the first; the value heads of a key head in their order, so that the sums in
// dq and dk have one.
template <class T>
void backward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const GatedDelta<T>& a = *static_cast<const GatedDelta<T>*>(arguments);
  Pieces<T> pieces{a.scratch + thread * a.scratch_size};
  BackwardScratch<T> s(pieces, a);
  const std::int64_t group = a.heads / a.key_heads, most = tasks_abreast(a);
  const auto each = [&](std::int64_t task, const auto& visit) {
    std::int64_t n = 0;
    for (std::int64_t i = task; i < end && i < task + most; ++i)
      for (std::int64_t head = i / a.sequences.count * group; n < (i - task + 1) * group; ++n, ++head) {
        s.d_memory = s.d_memories + n * s.memory_size;
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

template <class T>
std::int64_t backward_scratch(const GatedDelta<T>& a) {
  Pieces<T> pieces{nullptr};
  BackwardScratch<T>(pieces, a);
  return pieces.used;
}

template <class T>
constexpr GatedDeltaForms<T> forms() {
  return {{forward<T>, forward_scratch<T>},
          {recurrent<T>, recurrent_scratch<T>},
          {backward<T>, backward_scratch<T>}};
}

}  // namespace

const GatedDeltaKernels gated_delta = {forms<float>(), forms<double>()};

}  // namespace lavagna::LAVAGNA_ISA
