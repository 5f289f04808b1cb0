// What the chunk form's forward and backward share: a task's place in the tensors, a chunk's tiles, its decays.
//
// Tiles are matrices by rows in scratch memory. A chunk has C tokens, a multiple of 16; where the sequence ends before
// that, the tiles go on with tokens that write nothing, read nothing and fade nothing.
#pragma once

#include "../core/decay.h"
#include "../core/pieces.h"
#include "gated_linear.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// `count` rows of `width` numbers, times a factor, as a tile of C rows; zeros where nothing is.
template <class T>
void gather(const T* from, std::int64_t from_row, std::int64_t count, std::int64_t width, T factor, T* to,
            std::int64_t C, std::int64_t to_row) {
  constexpr int wide = lanes<T>;
  for (std::int64_t i = 0; i < count; ++i) {
    const T* const source = from + i * from_row;
    T* const target = to + i * to_row;
    std::int64_t c = 0;
    for (; c + wide <= width; c += wide) store(target + c, load(source + c) * factor);
    if (c < width) {
      store(target + c, load_part(source + c, static_cast<int>(width - c)) * factor);
      c += wide;
    }
    for (; c < to_row; c += wide) store(target + c, Vec<T>{});
  }
  for (T* c = to + count * to_row; c < to + C * to_row; c += wide) store(c, Vec<T>{});
}

// The other way.
template <class T>
void scatter(const T* from, std::int64_t from_row, std::int64_t count, std::int64_t width, T factor, T* to,
             std::int64_t to_row) {
  constexpr int wide = lanes<T>;
  for (std::int64_t i = 0; i < count; ++i) {
    const T* const source = from + i * from_row;
    T* const target = to + i * to_row;
    std::int64_t c = 0;
    for (; c + wide <= width; c += wide) store(target + c, load(source + c) * factor);
    if (c < width) store_part(target + c, load(source + c) * factor, static_cast<int>(width - c));
  }
}

// Row i times factor[i].
template <class T>
void scale_rows(std::int64_t rows, std::int64_t row, const T* from, const T* factor, T* to) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t c = 0; c < row; c += lanes<T>) store(to + i * row + c, load(from + i * row + c) * factor[i]);
}

template <class T>
void fill(T* to, std::int64_t count, T value) {
  for (std::int64_t i = 0; i < count; i += lanes<T>) store(to + i, splat(value));
}

// Rows that are needed next, fetched into cache a few at a time while products run: they lie in pieces of a few cache
// lines, far from each other, which no processor guesses by itself.
struct Ahead {
  struct Rows {
    const char* next;
    std::int64_t row, width, left;  // bytes, bytes, rows
  };
  Rows rows[8];
  int count = 0;
  std::int64_t left = 0, at_once = 0;

  template <class T>
  void add(const T* first, std::int64_t row, std::int64_t width, std::int64_t tokens) {
    constexpr std::int64_t size = sizeof(T);
    rows[count++] = {reinterpret_cast<const char*>(first), row * size, width * size, tokens};
    left += tokens;
  }

  // Share the rows among so many calls of `some`.
  void start(std::int64_t calls) { at_once = (left + calls - 1) / calls; }

  LAVAGNA_INLINE void some() {
    for (std::int64_t n = at_once; n > 0 && count > 0; --n) {
      Rows& r = rows[count - 1];
      for (std::int64_t byte = 0; byte < r.width; byte += 64) __builtin_prefetch(r.next + byte);
      r.next += r.row;
      if (--r.left == 0) --count;
    }
  }
};

// A contiguous range of the strips of one key head in one sequence.
template <class T>
struct Part {
  const GatedLinear<T>& a;
  std::int64_t sequence, head, part;
  std::int64_t first, last;    // strips
  std::int64_t begin, length;  // tokens

  Part(const GatedLinear<T>& a, std::int64_t task)
      : a(a),
        sequence(task / a.parts / a.heads),
        head(task / a.parts % a.heads),
        part(task % a.parts),
        first(part * a.ratio * a.strips() / a.parts),
        last((part + 1) * a.ratio * a.strips() / a.parts),
        begin(a.sequences.begin(sequence)),
        length(a.sequences.length(sequence)) {}

  // Where the rows of a token begin that this part reads.
  const T* q(std::int64_t token) const { return a.q + token * a.q_row + head * a.keys; }
  const T* k(std::int64_t token) const { return a.k + token * a.k_row + head * a.keys; }
  const T* v(std::int64_t token, std::int64_t strip) const {
    return a.v + token * a.v_row + value_head(strip) * a.values + column(strip);
  }
  T* o(std::int64_t token, std::int64_t strip) const {
    return a.o + (token * a.value_heads() + value_head(strip)) * a.values + column(strip);
  }
  const T* log_decay(std::int64_t token, std::int64_t value_head) const {
    return a.log_decay + token * a.log_decay_row + value_head * a.keys;
  }

  std::int64_t value_head(std::int64_t strip) const { return head * a.ratio + strip / a.strips(); }
  std::int64_t column(std::int64_t strip) const { return strip % a.strips() * a.strip; }
  std::int64_t tokens(std::int64_t start) const { return length - start < a.chunk ? length - start : a.chunk; }
  std::int64_t width(std::int64_t strip) const {
    const std::int64_t left = a.values - column(strip);
    return left < a.strip ? left : a.strip;
  }
};

// One chunk of a part.
template <class T, bool channel>
struct Chunk {
  const Part<T>& p;
  const GatedLinear<T>& a;
  const std::int64_t K, Kp, Vp;
  std::int64_t start, tokens, C;  // its first token among all, its tokens, and those of its tiles

  T* q;  // [C, Kp], times scale
  T* k;
  T* k_turned;  // [Kp, C]
  T* qk;        // [C, C], q kᵀ; one decay for all channels
  T* v;         // [C, Vp], with a column of ones for the normaliser
  T* written;   // [C, Vp], v faded to the end of the chunk, where k is not
  T* log_decay;
  T* between;
  T* read;
  T* write;
  T* weights;     // [C, C]: what token i reads of token j
  T* total;       // [Kp]
  T* reading;  // [C, Kp]: reads the state before the chunk, then times `read`
  T* writing;  // [C, Kp]: writes `written`
  ChannelDecay<T, 1> absorbed;

  Chunk(const Part<T>& p, Pieces<T>& pieces)
      : p(p),
        a(p.a),
        K(a.keys),
        Kp(whole_vectors(a.keys)),
        Vp(whole_vectors(a.strip + a.normalizer)),
        start(0),
        tokens(0),
        C(a.chunk) {
    q = pieces.take(C * Kp);
    k = pieces.take(C * Kp);
    v = pieces.take(C * Vp);
    reading = q;
    writing = k;
    absorbed = {};
    absorbed.channels = Kp;
    if constexpr (channel) {
      written = v;
      log_decay = pieces.take(C * Kp);
      read = write = between = k_turned = qk = nullptr;
      place(pieces.take(channel_decay_size<T, 1>(C, Kp, C)));
    } else {
      log_decay = pieces.take(C);
      k_turned = pieces.take(C * Kp);
      qk = pieces.take(C * C);
      written = pieces.take(C * Vp);
      between = pieces.take(C * C);
      weights = pieces.take(C * C);
      read = pieces.take(C);
      write = pieces.take(C);
      total = pieces.take(Kp);
    }
  }

  void place(T* memory) {
    if (memory == nullptr) return;
    absorbed.tokens = absorbed.row = C;
    absorbed.log_decay = log_decay;
    absorbed.rows[0] = q;
    absorbed.column = k;
    lavagna::LAVAGNA_ISA::place(absorbed, memory);
    reading = absorbed.reading[0];
    writing = absorbed.writing;
    weights = absorbed.scores[0];
    total = absorbed.total;
  }

  // Go to the chunk that begins at token `first` of the sequence.
  void move(std::int64_t first) {
    start = p.begin + first;
    tokens = p.tokens(first);
    C = whole_vectors(tokens);
    if constexpr (channel) place(absorbed.decay);
    gather(p.q(start), a.q_row, tokens, K, a.scale, q, C, Kp);
    gather(p.k(start), a.k_row, tokens, K, T(1), k, C, Kp);
  }

  // q kᵀ, on and below the diagonal.
  void pairs() {
    if constexpr (channel) return;
    transpose(C, Kp, k, Kp, k_turned, C);
    tiles<T>(C, C, [&](auto tile, std::int64_t i, std::int64_t j) LAVAGNA_LAMBDA {
      if (j >= i + tile.height) return;
      tile.add(K, q + i * Kp, Kp, 1, k_turned + j, C);
      tile.put(qk + i * C + j, C);
    });
  }

  // The decays of a value head, and what its tokens read of each other.
  void decays(std::int64_t head) {
    const bool before = a.bonus != nullptr;  // a token reads before it fades and writes
    if constexpr (channel) {
      gather(p.log_decay(start, head), a.log_decay_row, tokens, K, T(1), log_decay, C, Kp);
      before ? absorb<T, true>(absorbed) : absorb<T, false>(absorbed);
    } else {
      for (std::int64_t i = 0; i < C; ++i)
        log_decay[i] = i >= tokens || a.gate == Gate::none ? T(0)
                       : a.gate == Gate::constant         ? a.log_decay[head]
                                                          : a.log_decay[(start + i) * a.log_decay_row + head];
      fill(total, Kp, before ? segments<T, true>(C, log_decay, between, C, read, write)
                             : segments<T, false>(C, log_decay, between, C, read, write));
      for (std::int64_t i = 0; i < C; ++i) {
        std::int64_t j = 0;
        for (; j <= i; j += lanes<T>) store(weights + i * C + j, load(qk + i * C + j) * load(between + i * C + j));
        for (; j < C; j += lanes<T>) store(weights + i * C + j, Vec<T>{});
      }
    }
    if (before) {
      const T* const bonus = a.bonus + head * K;
      for (std::int64_t i = 0; i < tokens; ++i) {
        T own = 0;
        for (std::int64_t c = 0; c < K; ++c) own += q[i * Kp + c] * k[i * Kp + c] * bonus[c];
        weights[i * C + i] = own;
      }
    }
  }

  // The values of a strip; its decays came before.
  void values(std::int64_t strip) {
    const std::int64_t width = p.width(strip);
    gather(p.v(start, strip), a.v_row, tokens, width, T(1), v, C, Vp);
    if (a.normalizer)
      for (std::int64_t i = 0; i < tokens; ++i) v[i * Vp + width] = 1;
    if constexpr (!channel) scale_rows(C, Vp, v, write, written);
  }
};

// The factors of a chunk in the products of the forward pass.
template <class T, class F, bool channel>
struct ChunkFactors {
  const Chunk<T, channel>& x;
  F* reading;  // [C, Kp], pairs of keys
  F* writing;  // [C, Kp], pairs of tokens
  F* weights;  // [C, C], pairs along its rows
  F* v;        // [C, Vp], pairs of tokens
  F* written;  // [C, Vp], pairs of tokens

  ChunkFactors(const Chunk<T, channel>& x, Pieces<T>& pieces) : x(x) {
    for (F** piece : {&reading, &writing}) *piece = pieces.template factors<F>(nullptr, x.C * x.Kp);
    weights = pieces.template factors<F>(nullptr, x.C * x.C);
    for (F** piece : {&v, &written}) *piece = pieces.template factors<F>(nullptr, x.C * x.Vp);
  }

  // Each when the chunk has them.
  void keys() {
    reading = factors_of(x.reading, reading);
    writing = factors_of(x.writing, writing);
    pack_along(x.C * x.Kp, x.reading, reading);
    pack_across(x.C, x.Kp, x.writing, writing, x.Kp);
  }

  void decays() {
    weights = factors_of(x.weights, weights);
    pack_along(x.C * x.C, x.weights, weights);
  }

  void values() {
    v = factors_of(x.v, v);
    written = factors_of(x.written, written);
    pack_across(x.C, x.Vp, x.v, v, x.Vp);
    if (x.written != x.v)
      pack_across(x.C, x.Vp, x.written, written, x.Vp);
    else
      written = v;
  }
};

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
