#pragma once

#include <trireme/kernels/key_runs.h>
#include <trireme/kernels/tile_products.h>
#include <trireme/kernels/wide.h>

// Attention of fused_kernels.h, written once; included by each fused_<simd>.cpp. Keys are processed in pieces, and
// queries in blocks that hold a piece's scores entirely; only those of the block's runs (key_runs.h) are computed. Only
// results of several pieces are rescaled. All of a head's workspace is fp32.

namespace trireme::kernels {
namespace {

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

/// scores[m][j] = a[m] . panels[j] for the rows of a block from query q0 on and the keys of its runs, up to the last
/// that they see.
inline void block_scores(const KeyPiece& piece, const KeyRuns& runs, int64_t head_size, const float* a, int64_t width,
                         const float* panels, int64_t q0, int64_t rows, float* scores, int64_t ld) {
  for (const KeyRun& run : runs) {
    for (int64_t first = run.begin; first < run.end;) {
      const int64_t panel = first / kPanel * kPanel; // a run may begin within one
      const int64_t end = panel + kPanel < run.end ? panel + kPanel : run.end;
      for (int64_t m = 0; m < rows; m += kTileRows) {
        const int64_t group = rows - m < kTileRows ? rows - m : kTileRows;
        const int64_t seen = piece.seen_before(q0 + m + group);
        const int64_t columns = round_up((seen < end ? seen : end) - first, Wide::kCount);
        if (columns > 0) {
          multiply<false>(static_cast<int>(group), columns, head_size, a + m * width, width, 1,
                          panels + panel * head_size + (first - panel), kPanel, scores + m * ld + first, ld);
        }
      }
      first = end;
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

/// What a query sees of a run: keys [begin, seen), of which those before `unseen` are older than its window.
struct RowKeys {
  RowKeys(const KeyPiece& piece, const KeyRun& run, int64_t query)
      : begin(run.begin), unseen(piece.unseen_by(query)), seen(piece.seen_before(query + 1)) {
    seen = seen < run.end ? seen : run.end;
  }
  int64_t begin, unseen, seen;

  bool is_empty() const { return unseen >= seen || begin >= seen; }
  /// Fills what the query does not see, up to full registers.
  void mask(float* row, float value) const {
    for (int64_t j = begin; j < unseen; ++j) {
      row[j] = value;
    }
    mask_row(row, seen, value);
  }
  /// Zeros from the run's begin to where the products of its neighbours end.
  void clear(float* row) const {
    for (int64_t j = begin; j < round_up((seen > begin ? seen : begin) + kTileRows, Wide::kCount); ++j) {
      row[j] = 0;
    }
  }
};

/// Converts scores to e^(score - max) and returns the row's log sum exp; `scale` becomes 1 / sum. Without a key in
/// sight these are zeros, -infinity and 0.
inline float softmax_row(float* row, const KeyPiece& piece, const KeyRuns& runs, int64_t query, float& scale) {
  Wide top = Wide::all(kMinusInfinity);
  for (const KeyRun& run : runs) {
    const RowKeys keys(piece, run, query);
    if (keys.is_empty()) {
      keys.clear(row);
      continue;
    }
    keys.mask(row, kMinusInfinity);
    for (int64_t j = keys.begin; j < keys.seen; j += Wide::kCount) {
      top = max(top, Wide::load(row + j));
    }
  }
  const float highest = largest(top);
  if (highest == kMinusInfinity) {
    scale = 0;
    return highest;
  }
  const Wide shift = Wide::all(highest);
  Wide total = Wide::zero();
  for (const KeyRun& run : runs) {
    const RowKeys keys(piece, run, query);
    if (keys.is_empty()) {
      continue;
    }
    for (int64_t j = keys.begin; j < keys.seen; j += Wide::kCount) {
      const Wide e = exp(Wide::load(row + j) - shift);
      total = total + e;
      e.store(row + j);
    }
    clear_behind(row, keys.seen);
  }
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

/// rows_out[m] = sum over the keys of the runs of p[m][j] * values[j].
inline void multiply_runs(const KeyPiece& piece, const KeyRuns& runs, int64_t q0, int64_t rows, const float* p,
                          int64_t ld, const float* values, int64_t width, float* rows_out) {
  for (int64_t m = 0; m < rows; m += kTileRows) {
    const int64_t group = rows - m < kTileRows ? rows - m : kTileRows;
    const int64_t seen = piece.seen_before(q0 + m + group);
    bool adds = false;
    for (const KeyRun& run : runs) {
      const int64_t depth = (seen < run.end ? seen : run.end) - run.begin;
      const float* from = p + m * ld + run.begin;
      const float* of = values + run.begin * width;
      if (!adds) {
        multiply<false>(static_cast<int>(group), width, depth, from, ld, 1, of, width, rows_out + m * width, width);
      } else if (depth > 0) {
        multiply<true>(static_cast<int>(group), width, depth, from, ld, 1, of, width, rows_out + m * width, width);
      }
      adds = true;
    }
  }
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
  const bool merges = space.all_rows != nullptr && skips_keys(args); // the first piece may hold no key of a query
  if (merges) {
    std::memset(space.all_rows, 0, static_cast<size_t>(args.queries * width) * sizeof(float));
    for (int64_t query = 0; query < args.queries; ++query) {
      lse[query] = kMinusInfinity;
    }
  }
  each_piece(args, head, false, [&](const KeyPiece& piece) {
    part(args.k, args.k_at, piece.first, piece.count, 1, 1, space.v);
    transpose_panels(space.v, width, piece.count, size, space.k_panels);
    part(args.v, args.v_at, piece.first, piece.count, 2, 1, space.v);
    const int64_t end = piece.end_of_queries(args.queries);
    for (int64_t q0 = piece.first_query(), rows = 0; q0 < end; q0 += rows) {
      rows = piece.rows_from(q0, end);
      const KeyRuns runs = piece.runs_of(q0, rows);
      if (runs.is_empty()) {
        continue;
      }
      block_scores(piece, runs, size, space.q + q0 * width, width, space.k_panels, q0, rows, space.scores,
                   space.score_width);
      float scale[kBlockRows];
      float sums[kBlockRows];
      for (int64_t m = 0; m < rows; ++m) {
        sums[m] = softmax_row(space.scores + m * space.score_width, piece, runs, q0 + m, scale[m]);
      }
      multiply_runs(piece, runs, q0, rows, space.scores, space.score_width, space.v, width, space.rows_out);
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
inline void backward_row(float* p, float* dp, const KeyPiece& piece, const KeyRuns& runs, int64_t query, float lse,
                         const float* delta) {
  const Wide shift = Wide::all(lse);
  Wide total = Wide::zero();
  for (const KeyRun& run : runs) {
    const RowKeys keys(piece, run, query);
    keys.mask(p, kMinusInfinity);
    keys.mask(dp, 0);
    for (int64_t j = keys.begin; j < keys.seen; j += Wide::kCount) {
      const Wide e = exp(Wide::load(p + j) - shift);
      e.store(p + j);
      total = fma(e, Wide::load(dp + j), total);
    }
  }
  const Wide mean = Wide::all(delta != nullptr ? *delta : sum(total));
  for (const KeyRun& run : runs) {
    const RowKeys keys(piece, run, query);
    for (int64_t j = keys.begin; j < keys.seen; j += Wide::kCount) {
      (Wide::load(p + j) * (Wide::load(dp + j) - mean)).store(dp + j);
    }
    clear_behind(p, keys.seen);
    clear_behind(dp, keys.seen);
  }
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
  const bool adds = space.all_rows != nullptr && skips_keys(args); // the first piece may hold no key of a query
  if (adds) {
    std::memset(space.all_rows, 0, static_cast<size_t>(args.queries * width) * sizeof(float));
  }
  part(args.q, args.q_at, 0, args.queries, 0, args.scale, space.q);
  each_piece(args, head, true, [&](const KeyPiece& piece) {
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
    for (int64_t q0 = piece.first_query(), rows = 0; q0 < end; q0 += rows) {
      rows = piece.rows_from(q0, end);
      const KeyRuns runs = piece.runs_of(q0, rows);
      if (runs.is_empty()) {
        continue;
      }
      const float* q = space.q + q0 * width;
      widen(dout + q0 * args.dout_at.row, args.dout_at.row, nullptr, 1, rows, size, space.d_out, width);
      block_scores(piece, runs, size, q, width, space.k_panels, q0, rows, space.scores, ld);
      block_scores(piece, runs, size, space.d_out, width, space.v_panels, q0, rows, space.d_scores, ld);
      for (int64_t m = 0; m < rows; ++m) {
        backward_row(space.scores + m * ld, space.d_scores + m * ld, piece, runs, q0 + m, lse[q0 + m],
                     delta != nullptr ? delta + q0 + m : nullptr);
      }
      multiply_runs(piece, runs, q0, rows, space.d_scores, ld, space.k, width, space.rows_out);
      if (space.all_rows != nullptr) {
        add_up(space.rows_out, rows * width, piece.first == 0 && !adds, space.all_rows + q0 * width);
      } else {
        give_queries(space.rows_out, q0, rows);
        if (dbias != nullptr) {
          sum_rows(space.rows_out, width, rows, size, args.scale, q0 > 0, space.sums, dbias);
        }
      }
      const int64_t past = q0 - piece.first_query(); // keys of the piece that all of a causal block's queries see
      for (const KeyRun& run : runs) {
        for (int64_t j = run.begin; j < run.end; j += kTileRows) { // keys; causal queries before them do not see them
          const int tile = static_cast<int>(run.end - j < kTileRows ? run.end - j : kTileRows);
          const int64_t skip = args.causal && j > past ? j - past : 0;
          multiply<true>(tile, width, rows - skip, space.scores + skip * ld + j, 1, ld, space.d_out + skip * width,
                         width, dv + j * width, width);
          multiply<true>(tile, width, rows - skip, space.d_scores + skip * ld + j, 1, ld, q + skip * width, width,
                         dk + j * width, width);
        }
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
