#pragma once

#include <trireme/kernels/fused_kernels.h>
#include <trireme/kernels/tile_products.h>
#include <trireme/kernels/wide.h>

// Attention of fused_kernels.h, written once; included by each fused_<simd>.cpp. Keys are processed in pieces, and
// queries in blocks that hold a piece's scores entirely. Only results of several pieces are rescaled. All of a head's
// workspace is fp32.

namespace trireme::kernels {
namespace {

constexpr int64_t kBlockRows = 48;
/// Keys per piece: with their panels, scores and gradients they fit into a core's L2 cache.
constexpr int64_t kPieceKeys = 1024;

/// Keys [first, first + count), and the queries that see some of them.
struct KeyPiece {
  int64_t first, count;
  bool causal;
  int64_t window;

  int64_t first_query() const { return causal ? first : 0; }
  int64_t end_of_queries(int64_t queries) const {
    return window > 0 && first + count + window - 1 < queries ? first + count + window - 1 : queries;
  }
  /// Number of the piece's keys that the queries before `end` see, where `end` is after first_query().
  int64_t seen_before(int64_t end) const { return causal && end - first < count ? end - first : count; }
  /// Number of the piece's first keys that are older than the query's window.
  int64_t unseen_by(int64_t query) const {
    const int64_t old = window > 0 ? query - window + 1 - first : 0;
    return old < 0 ? 0 : old < count ? old : count;
  }
  /// The panel from which on the queries from `query` on see keys.
  int64_t first_panel(int64_t query) const { return unseen_by(query) / kPanel * kPanel; }
};

/// Without a given delta, backward computes it from a query's full row of scores, so all keys are one piece.
inline int64_t keys_of_a_piece(const AttentionArgs& args, bool backward) {
  const bool whole = args.keys <= kPieceKeys || (backward && args.delta == nullptr);
  return whole ? args.keys : kPieceKeys;
}

/// Heads of queries that share a head of keys and values.
inline int64_t group_of(const AttentionArgs& args) {
  return args.kv_heads > 0 ? args.heads / args.kv_heads : 1;
}

/// Calls f(piece) for all keys.
template <class F>
inline void each_piece(const AttentionArgs& args, bool backward, const F& f) {
  const int64_t most = keys_of_a_piece(args, backward);
  for (int64_t first = 0; first < args.keys; first += most) {
    f(KeyPiece{first, args.keys - first < most ? args.keys - first : most, args.causal, args.window});
  }
}

/// The workspace of one head.
struct HeadSpace {
  /// base: nullptr to count only.
  HeadSpace(const AttentionArgs& args, bool backward, float* base)
      : HeadSpace(args.queries, keys_of_a_piece(args, backward), args.head_size,
                  keys_of_a_piece(args, backward) < args.keys, group_of(args) > 1 ? args.keys : 0, backward, base) {}

  int64_t width, padded, score_width; ///< floats from row to row: of a head, of a panel row's whole, of scores
  float *q, *k, *v, *k_panels, *v_panels, *dk, *dv, *d_out, *rows_out, *scores, *d_scores, *sums;
  float* all_rows; ///< of all queries, what the pieces so far give; nullptr with one piece
  int64_t floats = 0;

 private:
  HeadSpace(int64_t queries, int64_t keys, int64_t head_size, bool pieces, int64_t grouped_keys, bool backward,
            float* base)
      : width(round_up(head_size, Wide::kCount)), padded(round_up(keys, kPanel)), score_width(padded + Wide::kCount) {
    const auto take = [&](int64_t n) {
      float* here = base != nullptr ? base + floats : nullptr;
      floats += n;
      return here;
    };
    q = take(queries * width);
    k = backward ? take(keys * width) : nullptr;
    v = backward ? nullptr : take(keys * width);
    k_panels = take(padded * head_size);
    v_panels = backward ? take(padded * head_size) : nullptr;
    const int64_t summed = grouped_keys > 0 ? grouped_keys : keys; // a group's sums are those of all pieces
    dk = backward ? take(summed * width) : nullptr;
    dv = backward ? take(summed * width) : nullptr;
    d_out = backward ? take(kBlockRows * width) : nullptr;
    rows_out = take(kBlockRows * width);
    scores = take(kBlockRows * score_width);
    d_scores = backward ? take(kBlockRows * score_width) : nullptr;
    sums = backward ? take(width) : nullptr;
    all_rows = pieces ? take(queries * width) : nullptr;
  }
};

/// scores[m][j] = a[m] . panels[j] for the rows of a block from query q0 on, up to the last key they
/// see.
inline void block_scores(const KeyPiece& piece, int64_t head_size, const float* a, int64_t width, const float* panels,
                         int64_t q0, int64_t rows, float* scores, int64_t ld) {
  for (int64_t first = piece.first_panel(q0); first < piece.seen_before(q0 + rows); first += kPanel) {
    for (int64_t m = 0; m < rows; m += kTileRows) {
      const int64_t group = rows - m < kTileRows ? rows - m : kTileRows;
      const int64_t seen = round_up(piece.seen_before(q0 + m + group), Wide::kCount) - first;
      if (seen > 0) {
        multiply<false>(static_cast<int>(group), seen < kPanel ? seen : kPanel, head_size, a + m * width, width, 1,
                        panels + first * head_size, kPanel, scores + m * ld + first, ld);
      }
    }
  }
}

/// Fills a row of scores from its last visible key on, up to full registers.
inline void mask_row(float* row, int64_t seen, float value) {
  for (int64_t j = seen; j < round_up(seen, Wide::kCount); ++j) {
    row[j] = value;
  }
}

/// Products of a group of rows extend past the last key that each of its rows sees.
inline void clear_behind(float* row, int64_t seen) {
  for (int64_t j = round_up(seen, Wide::kCount); j < round_up(seen + kTileRows, Wide::kCount); ++j) {
    row[j] = 0;
  }
}

constexpr float kMinusInfinity = -__builtin_inff();

/// The keys [begin, seen) of a row, of which the first `unseen` of the piece are older than its window.
struct RowKeys {
  RowKeys(const KeyPiece& piece, int64_t q0, int64_t query)
      : begin(piece.first_panel(q0)), unseen(piece.unseen_by(query)), seen(piece.seen_before(query + 1)) {}
  int64_t begin, unseen, seen;

  /// Fills what the query does not see, up to full registers.
  void mask(float* row, float value) const {
    for (int64_t j = begin; j < unseen; ++j) {
      row[j] = value;
    }
    mask_row(row, seen, value);
  }
};

/// Converts scores to e^(score - max) and returns the row's log sum exp; `scale` becomes 1 / sum. Without a key in
/// sight these are zeros, -infinity and 0.
inline float softmax_row(float* row, const RowKeys& keys, float& scale) {
  const int64_t seen = keys.seen;
  if (keys.unseen >= seen) {
    for (int64_t j = keys.begin; j < round_up(seen + kTileRows, Wide::kCount); ++j) {
      row[j] = 0;
    }
    scale = 0;
    return kMinusInfinity;
  }
  keys.mask(row, kMinusInfinity);
  Wide top = Wide::all(kMinusInfinity);
  for (int64_t j = keys.begin; j < seen; j += Wide::kCount) {
    top = max(top, Wide::load(row + j));
  }
  const float highest = largest(top);
  const Wide shift = Wide::all(highest);
  Wide total = Wide::zero();
  for (int64_t j = keys.begin; j < seen; j += Wide::kCount) {
    const Wide e = exp(Wide::load(row + j) - shift);
    total = total + e;
    e.store(row + j);
  }
  clear_behind(row, seen);
  const float all = sum(total);
  scale = 1.0f / all;
  return highest + __builtin_logf(all);
}

/// Merges a row's result over the keys so far with that over other keys, `scale` times `more`; updates `lse` for all.
inline void merge_row(float* row, float& lse, const float* more, float more_lse, float scale, int64_t width) {
  if (more_lse == kMinusInfinity) {
    return;
  }
  if (lse == kMinusInfinity) { // nothing so far
    lse = more_lse;
    for (int64_t c = 0; c < width; c += Wide::kCount) {
      (Wide::load(more + c) * Wide::all(scale)).store(row + c);
    }
    return;
  }
  const float smaller = __builtin_expf(-__builtin_fabsf(more_lse - lse));
  const Wide weight = Wide::all((more_lse < lse ? smaller : 1) / (1 + smaller));
  const Wide factor = Wide::all(scale);
  for (int64_t c = 0; c < width; c += Wide::kCount) {
    const Wide old = Wide::load(row + c);
    fma(weight, Wide::load(more + c) * factor - old, old).store(row + c);
  }
  lse = (more_lse < lse ? lse : more_lse) + __builtin_log1pf(smaller);
}

template <class T>
T* head_at(T* data, const HeadStrides& at, int64_t sample, int64_t head) {
  return data + sample * at.sample + head * at.head;
}

template <class T, class R>
void attention_task(const AttentionArgs& args, int64_t task, float* workspace) {
  const int64_t size = args.head_size;
  const int64_t hidden = args.heads * size;
  const int64_t sample = task / args.heads;
  const int64_t head = task % args.heads;
  const HeadSpace space(args, false, workspace);
  const int64_t width = space.width;
  const float* bias = args.bias != nullptr ? args.bias + head * size : nullptr;
  const auto part = [&](const void* from, const HeadStrides& at, int64_t first, int64_t rows, int64_t which,
                        float scale, float* to) {
    widen(head_at(static_cast<const T*>(from), at, sample, which == 0 ? head : head / group_of(args)) + first * at.row,
          at.row, bias != nullptr ? bias + which * hidden : nullptr, scale, rows, size, to, width);
  };
  part(args.q, args.q_at, 0, args.queries, 0, args.scale, space.q);
  R* out = head_at(static_cast<R*>(args.out), args.out_at, sample, head);
  float* lse = args.lse + task * args.queries;
  const bool merges = space.all_rows != nullptr && args.window > 0; // the first piece may hold no key of a query
  if (merges) {
    std::memset(space.all_rows, 0, static_cast<size_t>(args.queries * width) * sizeof(float));
    for (int64_t query = 0; query < args.queries; ++query) {
      lse[query] = kMinusInfinity;
    }
  }
  each_piece(args, false, [&](const KeyPiece& piece) {
    part(args.k, args.k_at, piece.first, piece.count, 1, 1, space.v);
    transpose_panels(space.v, width, piece.count, size, space.k_panels);
    part(args.v, args.v_at, piece.first, piece.count, 2, 1, space.v);
    const int64_t end = piece.end_of_queries(args.queries);
    for (int64_t q0 = piece.first_query(); q0 < end; q0 += kBlockRows) {
      const int64_t rows = end - q0 < kBlockRows ? end - q0 : kBlockRows;
      const int64_t begin = piece.first_panel(q0);
      block_scores(piece, size, space.q + q0 * width, width, space.k_panels, q0, rows, space.scores, space.score_width);
      float scale[kBlockRows];
      float sums[kBlockRows];
      for (int64_t m = 0; m < rows; ++m) {
        sums[m] = softmax_row(space.scores + m * space.score_width, RowKeys(piece, q0, q0 + m), scale[m]);
      }
      for (int64_t m = 0; m < rows; m += kTileRows) {
        const int64_t group = rows - m < kTileRows ? rows - m : kTileRows;
        multiply<false>(static_cast<int>(group), width, piece.seen_before(q0 + m + group) - begin,
                        space.scores + m * space.score_width + begin, space.score_width, 1, space.v + begin * width,
                        width, space.rows_out + m * width, width);
      }
      for (int64_t m = 0; m < rows; ++m) {
        const float* row = space.rows_out + m * width;
        const int64_t query = q0 + m;
        if (piece.first > 0 || merges) {
          merge_row(space.all_rows + query * width, lse[query], row, sums[m], scale[m], width);
          continue;
        }
        lse[query] = sums[m];
        if (space.all_rows != nullptr) {
          narrow(row, width, scale[m], 1, width, space.all_rows + query * width, width);
        } else {
          narrow(row, width, scale[m], 1, size, out + query * args.out_at.row, args.out_at.row);
        }
      }
    }
  });
  if (space.all_rows != nullptr) {
    narrow(space.all_rows, width, 1, args.queries, size, out, args.out_at.row);
  }
}

/// P and dP of a row become P and dS = P (dP - delta); delta = sum P dP unless given.
inline void backward_row(float* p, float* dp, const RowKeys& keys, float lse, const float* delta) {
  const int64_t seen = keys.seen;
  keys.mask(p, kMinusInfinity);
  keys.mask(dp, 0);
  const Wide shift = Wide::all(lse);
  Wide total = Wide::zero();
  for (int64_t j = keys.begin; j < seen; j += Wide::kCount) {
    const Wide e = exp(Wide::load(p + j) - shift);
    e.store(p + j);
    total = fma(e, Wide::load(dp + j), total);
  }
  const Wide mean = Wide::all(delta != nullptr ? *delta : sum(total));
  for (int64_t j = keys.begin; j < seen; j += Wide::kCount) {
    (Wide::load(p + j) * (Wide::load(dp + j) - mean)).store(dp + j);
  }
  clear_behind(p, seen);
  clear_behind(dp, seen);
}

/// to[c] = scale * sum over rows of from[r][c].
inline void sum_rows(const float* from, int64_t width, int64_t rows, int64_t columns, float scale, bool add,
                     float* sums, float* to) {
  for (int64_t c = 0; c < width; c += Wide::kCount) {
    Wide total = Wide::zero();
    for (int64_t r = 0; r < rows; ++r) {
      total = total + Wide::load(from + r * width + c);
    }
    (total * Wide::all(scale)).store(sums + c);
  }
  for (int64_t c = 0; c < columns; ++c) {
    to[c] = add ? to[c] + sums[c] : sums[c];
  }
}

/// to[i] += from[i], or = for the first.
inline void add_up(const float* from, int64_t n, bool first, float* to) {
  for (int64_t i = 0; i < n; i += Wide::kCount) {
    const Wide x = Wide::load(from + i);
    (first ? x : Wide::load(to + i) + x).store(to + i);
  }
}

/// Of one head of queries, `head`; adds to the gradients of its keys and values.
template <class T, class R>
void attention_backward_head(const AttentionArgs& args, int64_t sample, int64_t head, const HeadSpace& space) {
  const int64_t size = args.head_size;
  const int64_t hidden = args.heads * size;
  const int64_t group = group_of(args);
  const int64_t width = space.width;
  const int64_t ld = space.score_width;
  const T* dout = head_at(static_cast<const T*>(args.dout), args.dout_at, sample, head);
  const float* bias = args.bias != nullptr ? args.bias + head * size : nullptr;
  float* dbias = args.dbias != nullptr ? args.dbias + sample * 3 * hidden + head * size : nullptr;
  const float* lse = args.lse + (sample * args.heads + head) * args.queries;
  const float* delta = args.delta != nullptr ? args.delta + (sample * args.heads + head) * args.queries : nullptr;
  const auto part = [&](const void* from, const HeadStrides& at, int64_t first, int64_t rows, int64_t which,
                        float scale, float* to) {
    widen(head_at(static_cast<const T*>(from), at, sample, which == 0 ? head : head / group) + first * at.row, at.row,
          bias != nullptr ? bias + which * hidden : nullptr, scale, rows, size, to, width);
  };
  const auto give_queries = [&](const float* from, int64_t first, int64_t rows) {
    narrow(from, width, args.scale, rows, size,
           head_at(static_cast<R*>(args.dq), args.dq_at, sample, head) + first * args.dq_at.row, args.dq_at.row);
  };
  const bool adds = space.all_rows != nullptr && args.window > 0; // the first piece may hold no key of a query
  if (adds) {
    std::memset(space.all_rows, 0, static_cast<size_t>(args.queries * width) * sizeof(float));
  }
  part(args.q, args.q_at, 0, args.queries, 0, args.scale, space.q);
  each_piece(args, true, [&](const KeyPiece& piece) {
    float* dk = space.dk + (group > 1 ? piece.first * width : 0);
    float* dv = space.dv + (group > 1 ? piece.first * width : 0);
    part(args.v, args.v_at, piece.first, piece.count, 2, 1, space.k);
    transpose_panels(space.k, width, piece.count, size, space.v_panels);
    part(args.k, args.k_at, piece.first, piece.count, 1, 1, space.k);
    transpose_panels(space.k, width, piece.count, size, space.k_panels);
    if (head % group == 0) {
      std::memset(dk, 0, static_cast<size_t>(piece.count * width) * sizeof(float));
      std::memset(dv, 0, static_cast<size_t>(piece.count * width) * sizeof(float));
    }
    const int64_t end = piece.end_of_queries(args.queries);
    for (int64_t q0 = piece.first_query(); q0 < end; q0 += kBlockRows) {
      const int64_t rows = end - q0 < kBlockRows ? end - q0 : kBlockRows;
      const int64_t begin = piece.first_panel(q0);
      const int64_t seen = piece.seen_before(q0 + rows);
      const float* q = space.q + q0 * width;
      widen(dout + q0 * args.dout_at.row, args.dout_at.row, nullptr, 1, rows, size, space.d_out, width);
      block_scores(piece, size, q, width, space.k_panels, q0, rows, space.scores, ld);
      block_scores(piece, size, space.d_out, width, space.v_panels, q0, rows, space.d_scores, ld);
      for (int64_t m = 0; m < rows; ++m) {
        backward_row(space.scores + m * ld, space.d_scores + m * ld, RowKeys(piece, q0, q0 + m), lse[q0 + m],
                     delta != nullptr ? delta + q0 + m : nullptr);
      }
      for (int64_t m = 0; m < rows; m += kTileRows) {
        const int64_t tile = rows - m < kTileRows ? rows - m : kTileRows;
        multiply<false>(static_cast<int>(tile), width, piece.seen_before(q0 + m + tile) - begin,
                        space.d_scores + m * ld + begin, ld, 1, space.k + begin * width, width,
                        space.rows_out + m * width, width);
      }
      if (space.all_rows != nullptr) {
        add_up(space.rows_out, rows * width, piece.first == 0 && !adds, space.all_rows + q0 * width);
      } else {
        give_queries(space.rows_out, q0, rows);
        if (dbias != nullptr) {
          sum_rows(space.rows_out, width, rows, size, args.scale, q0 > 0, space.sums, dbias);
        }
      }
      const int64_t past = q0 - piece.first_query();      // keys of the piece that all of a causal block's queries see
      for (int64_t j = begin; j < seen; j += kTileRows) { // keys; causal queries before them do not see them
        const int tile = static_cast<int>(seen - j < kTileRows ? seen - j : kTileRows);
        const int64_t skip = args.causal && j > past ? j - past : 0;
        multiply<true>(tile, width, rows - skip, space.scores + skip * ld + j, 1, ld, space.d_out + skip * width, width,
                       dv + j * width, width);
        multiply<true>(tile, width, rows - skip, space.d_scores + skip * ld + j, 1, ld, q + skip * width, width,
                       dk + j * width, width);
      }
    }
    if (head % group == group - 1) {
      const auto give = [&](const float* from, void* to, const HeadStrides& at) {
        narrow(from, width, 1, piece.count, size,
               head_at(static_cast<R*>(to), at, sample, head / group) + piece.first * at.row, at.row);
      };
      give(dk, args.dk, args.dk_at);
      give(dv, args.dv, args.dv_at);
    }
    if (dbias != nullptr) {
      sum_rows(dk, width, piece.count, size, 1, piece.first > 0, space.sums, dbias + hidden);
      sum_rows(dv, width, piece.count, size, 1, piece.first > 0, space.sums, dbias + 2 * hidden);
    }
  });
  if (space.all_rows != nullptr) {
    give_queries(space.all_rows, 0, args.queries);
    if (dbias != nullptr) {
      sum_rows(space.all_rows, width, args.queries, size, args.scale, false, space.sums, dbias);
    }
  }
}

/// Of one head of keys and values, and all heads of queries that use it.
template <class T, class R>
void attention_backward_task(const AttentionArgs& args, int64_t task, float* workspace) {
  const HeadSpace space(args, true, workspace);
  const int64_t group = group_of(args), kv_heads = args.heads / group;
  const int64_t sample = task / kv_heads, first = task % kv_heads * group;
  for (int64_t head = first; head < first + group; ++head) {
    attention_backward_head<T, R>(args, sample, head, space);
  }
}

int64_t attention_workspace(const AttentionArgs& args, bool backward) {
  return HeadSpace(args, backward, nullptr).floats;
}

void attention(const AttentionArgs& args, int64_t begin, int64_t end, float* workspace) {
  const auto one = args.element != Element::bf16  ? &attention_task<float, float>
                   : args.result == Element::bf16 ? &attention_task<Bf16, Bf16>
                                                  : &attention_task<Bf16, float>;
  for (int64_t task = begin; task < end; ++task) {
    one(args, task, workspace);
  }
}

void attention_backward(const AttentionArgs& args, int64_t begin, int64_t end, float* workspace) {
  const auto one = args.element != Element::bf16  ? &attention_backward_task<float, float>
                   : args.result == Element::bf16 ? &attention_backward_task<Bf16, Bf16>
                                                  : &attention_backward_task<Bf16, float>;
  for (int64_t task = begin; task < end; ++task) {
    one(args, task, workspace);
  }
}

} // namespace
} // namespace trireme::kernels
