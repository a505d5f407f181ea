#pragma once

#include <trireme/kernels/fused_kernels.h>
#include <trireme/kernels/wide.h>

// Attention of fused_kernels.h, written once; included by each fused_<simd>.cpp. Keys are processed in pieces, and
// queries in blocks that hold a piece's scores entirely. Only results of several pieces are rescaled. All of a head's
// workspace is fp32.

namespace trireme::kernels {
namespace {

constexpr int64_t kBlockRows = 48;
constexpr int kTileRows = 6;
// 24 sums and their operands fill 32 registers of 16 floats; 12 sums of two halves fill 16 registers of 8.
constexpr int kTileWides = Wide::kParts == 1 ? 4 : 1;
/// Columns of a panel of transposed keys or values.
constexpr int64_t kPanel = 64;
/// Keys per piece: with their panels, scores and gradients they fit into a core's L2 cache.
constexpr int64_t kPieceKeys = 1024;

constexpr int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// c[m][n] = (or +=) sum over k of a[m * am + k * ak] * b[k * ldb + n], for m < kRows and n < 16 kWides, k ascending.
template <int kRows, int kWides, bool kAdd>
inline void multiply_tile(const float* a, int64_t am, int64_t ak, const float* b, int64_t ldb, int64_t depth, float* c,
                          int64_t ldc) {
  Wide sums[kRows][kWides];
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kWides; ++n) {
      sums[m][n] = kAdd ? Wide::load(c + m * ldc + n * Wide::kCount) : Wide::zero();
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Wide columns[kWides];
#pragma GCC unroll 4
    for (int n = 0; n < kWides; ++n) {
      columns[n] = Wide::load(b + k * ldb + n * Wide::kCount);
    }
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      const Wide factor = Wide::all(a[m * am + k * ak]);
#pragma GCC unroll 4
      for (int n = 0; n < kWides; ++n) {
        sums[m][n] = fma(factor, columns[n], sums[m][n]);
      }
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kWides; ++n) {
      sums[m][n].store(c + m * ldc + n * Wide::kCount);
    }
  }
}

template <int kWides, bool kAdd>
inline void multiply_rows(int rows, const float* a, int64_t am, int64_t ak, const float* b, int64_t ldb, int64_t depth,
                          float* c, int64_t ldc) {
  switch (rows) {
    case 6:
      return multiply_tile<6, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 5:
      return multiply_tile<5, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 4:
      return multiply_tile<4, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 3:
      return multiply_tile<3, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 2:
      return multiply_tile<2, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    default:
      return multiply_tile<1, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
  }
}

/// Up to kTileRows rows by `columns`, a multiple of 16.
template <bool kAdd>
void multiply(int rows, int64_t columns, int64_t depth, const float* a, int64_t am, int64_t ak, const float* b,
              int64_t ldb, float* c, int64_t ldc) {
  int64_t n = 0;
  for (; n + kTileWides * Wide::kCount <= columns; n += kTileWides * Wide::kCount) {
    multiply_rows<kTileWides, kAdd>(rows, a, am, ak, b + n, ldb, depth, c + n, ldc);
  }
  if constexpr (kTileWides > 1) {
    for (; n < columns; n += Wide::kCount) {
      multiply_rows<1, kAdd>(rows, a, am, ak, b + n, ldb, depth, c + n, ldc);
    }
  }
}

/// Keys [first, first + count), and the queries that see some of them.
struct KeyPiece {
  int64_t first, count;
  bool causal;

  int64_t first_query() const {
    return causal ? first : 0;
  }
  /// Number of the piece's keys that the queries before `end` see, where `end` is after first_query().
  int64_t seen_before(int64_t end) const {
    return causal && end - first < count ? end - first : count;
  }
};

/// Without a given delta, backward computes it from a query's full row of scores, so all keys are one piece.
inline int64_t keys_of_a_piece(const AttentionArgs& args, bool backward) {
  const bool whole = args.keys <= kPieceKeys || (backward && args.delta == nullptr);
  return whole ? args.keys : kPieceKeys;
}

/// Calls f(piece) for all keys.
template <class F>
inline void each_piece(const AttentionArgs& args, bool backward, const F& f) {
  const int64_t most = keys_of_a_piece(args, backward);
  for (int64_t first = 0; first < args.keys; first += most) {
    f(KeyPiece{first, args.keys - first < most ? args.keys - first : most, args.causal});
  }
}

/// The workspace of one head.
struct HeadSpace {
  /// base: nullptr to count only.
  HeadSpace(const AttentionArgs& args, bool backward, float* base)
      : HeadSpace(args.queries, keys_of_a_piece(args, backward), args.head_size,
                  keys_of_a_piece(args, backward) < args.keys, backward, base) {}

  int64_t width, padded, score_width; ///< floats from row to row: of a head, of a panel row's whole, of scores
  float *q, *k, *v, *k_panels, *v_panels, *dk, *dv, *d_out, *rows_out, *scores, *d_scores, *sums;
  float* all_rows; ///< of all queries, what the pieces so far give; nullptr with one piece
  int64_t floats = 0;

 private:
  HeadSpace(int64_t queries, int64_t keys, int64_t head_size, bool pieces, bool backward, float* base)
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
    dk = backward ? take(keys * width) : nullptr;
    dv = backward ? take(keys * width) : nullptr;
    d_out = backward ? take(kBlockRows * width) : nullptr;
    rows_out = take(kBlockRows * width);
    scores = take(kBlockRows * score_width);
    d_scores = backward ? take(kBlockRows * score_width) : nullptr;
    sums = backward ? take(width) : nullptr;
    all_rows = pieces ? take(queries * width) : nullptr;
  }
};

/// to[r][c] = (from[r][c] + bias[c]) * scale as fp32, zeros up to `width`.
template <class T>
inline void widen(const T* from, int64_t stride, const float* bias, float scale, int64_t rows, int64_t columns,
                  float* to, int64_t width) {
  const Wide factor = Wide::all(scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += Wide::kCount) {
      const int n = static_cast<int>(columns - c < Wide::kCount ? columns - c : Wide::kCount);
      Wide x = n == Wide::kCount ? Wide::load(from + r * stride + c) : Wide::load(from + r * stride + c, n);
      if (bias != nullptr) {
        x = x + (n == Wide::kCount ? Wide::load(bias + c) : Wide::load(bias + c, n));
      }
      (x * factor).store(to + r * width + c);
    }
  }
}

/// to[r][c] = from[r][c] * scale, rounded to T.
template <class T>
inline void narrow(const float* from, int64_t width, float scale, int64_t rows, int64_t columns, T* to,
                   int64_t stride) {
  const Wide factor = Wide::all(scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += Wide::kCount) {
      const Wide x = Wide::load(from + r * width + c) * factor;
      if (columns - c < Wide::kCount) {
        x.store(to + r * stride + c, static_cast<int>(columns - c));
      } else {
        x.store(to + r * stride + c);
      }
    }
  }
}

/// panels[p][c][i] = from[p * kPanel + i][c], zeros behind the last row.
inline void transpose_panels(const float* from, int64_t width, int64_t rows, int64_t columns, float* panels) {
  for (int64_t first = 0; first < rows; first += kPanel) {
    float* panel = panels + first * columns;
    const int64_t here = rows - first < kPanel ? rows - first : kPanel;
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t i = 0; i < here; ++i) {
        panel[c * kPanel + i] = from[(first + i) * width + c];
      }
      for (int64_t i = here; i < kPanel; ++i) {
        panel[c * kPanel + i] = 0;
      }
    }
  }
}

/// scores[m][j] = a[m] . panels[j] for the rows of a block from query q0 on, up to the last key they
/// see.
inline void block_scores(const KeyPiece& piece, int64_t head_size, const float* a, int64_t width, const float* panels,
                         int64_t q0, int64_t rows, float* scores, int64_t ld) {
  for (int64_t first = 0; first < piece.seen_before(q0 + rows); first += kPanel) {
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

/// Converts scores to e^(score - max) and returns the row's log sum exp; `scale` becomes 1 / sum.
inline float softmax_row(float* row, int64_t seen, float& scale) {
  mask_row(row, seen, kMinusInfinity);
  Wide top = Wide::all(kMinusInfinity);
  for (int64_t j = 0; j < seen; j += Wide::kCount) {
    top = max(top, Wide::load(row + j));
  }
  const float highest = largest(top);
  const Wide shift = Wide::all(highest);
  Wide total = Wide::zero();
  for (int64_t j = 0; j < seen; j += Wide::kCount) {
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
    widen(head_at(static_cast<const T*>(from), at, sample, head) + first * at.row, at.row,
          bias != nullptr ? bias + which * hidden : nullptr, scale, rows, size, to, width);
  };
  part(args.q, args.q_at, 0, args.queries, 0, args.scale, space.q);
  R* out = head_at(static_cast<R*>(args.out), args.out_at, sample, head);
  float* lse = args.lse + task * args.queries;
  each_piece(args, false, [&](const KeyPiece& piece) {
    part(args.k, args.k_at, piece.first, piece.count, 1, 1, space.v);
    transpose_panels(space.v, width, piece.count, size, space.k_panels);
    part(args.v, args.v_at, piece.first, piece.count, 2, 1, space.v);
    for (int64_t q0 = piece.first_query(); q0 < args.queries; q0 += kBlockRows) {
      const int64_t rows = args.queries - q0 < kBlockRows ? args.queries - q0 : kBlockRows;
      block_scores(piece, size, space.q + q0 * width, width, space.k_panels, q0, rows, space.scores, space.score_width);
      float scale[kBlockRows];
      float sums[kBlockRows];
      for (int64_t m = 0; m < rows; ++m) {
        sums[m] = softmax_row(space.scores + m * space.score_width, piece.seen_before(q0 + m + 1), scale[m]);
      }
      for (int64_t m = 0; m < rows; m += kTileRows) {
        const int64_t group = rows - m < kTileRows ? rows - m : kTileRows;
        multiply<false>(static_cast<int>(group), width, piece.seen_before(q0 + m + group),
                        space.scores + m * space.score_width, space.score_width, 1, space.v, width,
                        space.rows_out + m * width, width);
      }
      for (int64_t m = 0; m < rows; ++m) {
        const float* row = space.rows_out + m * width;
        const int64_t query = q0 + m;
        if (piece.first > 0) {
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
inline void backward_row(float* p, float* dp, int64_t seen, float lse, const float* delta) {
  mask_row(p, seen, kMinusInfinity);
  mask_row(dp, seen, 0);
  const Wide shift = Wide::all(lse);
  Wide total = Wide::zero();
  for (int64_t j = 0; j < seen; j += Wide::kCount) {
    const Wide e = exp(Wide::load(p + j) - shift);
    e.store(p + j);
    total = fma(e, Wide::load(dp + j), total);
  }
  const Wide mean = Wide::all(delta != nullptr ? *delta : sum(total));
  for (int64_t j = 0; j < seen; j += Wide::kCount) {
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

template <class T, class R>
void attention_backward_task(const AttentionArgs& args, int64_t task, float* workspace) {
  const int64_t size = args.head_size;
  const int64_t hidden = args.heads * size;
  const int64_t sample = task / args.heads;
  const int64_t head = task % args.heads;
  const HeadSpace space(args, true, workspace);
  const int64_t width = space.width;
  const int64_t ld = space.score_width;
  const T* dout = head_at(static_cast<const T*>(args.dout), args.dout_at, sample, head);
  const float* bias = args.bias != nullptr ? args.bias + head * size : nullptr;
  float* dbias = args.dbias != nullptr ? args.dbias + sample * 3 * hidden + head * size : nullptr;
  const float* lse = args.lse + task * args.queries;
  const float* delta = args.delta != nullptr ? args.delta + task * args.queries : nullptr;
  const auto part = [&](const void* from, const HeadStrides& at, int64_t first, int64_t rows, int64_t which,
                        float scale, float* to) {
    widen(head_at(static_cast<const T*>(from), at, sample, head) + first * at.row, at.row,
          bias != nullptr ? bias + which * hidden : nullptr, scale, rows, size, to, width);
  };
  const auto give = [&](const float* from, int64_t first, int64_t rows, float scale, void* to, const HeadStrides& at) {
    narrow(from, width, scale, rows, size, head_at(static_cast<R*>(to), at, sample, head) + first * at.row, at.row);
  };
  part(args.q, args.q_at, 0, args.queries, 0, args.scale, space.q);
  each_piece(args, true, [&](const KeyPiece& piece) {
    part(args.v, args.v_at, piece.first, piece.count, 2, 1, space.k);
    transpose_panels(space.k, width, piece.count, size, space.v_panels);
    part(args.k, args.k_at, piece.first, piece.count, 1, 1, space.k);
    transpose_panels(space.k, width, piece.count, size, space.k_panels);
    std::memset(space.dk, 0, static_cast<size_t>(piece.count * width) * sizeof(float));
    std::memset(space.dv, 0, static_cast<size_t>(piece.count * width) * sizeof(float));
    for (int64_t q0 = piece.first_query(); q0 < args.queries; q0 += kBlockRows) {
      const int64_t rows = args.queries - q0 < kBlockRows ? args.queries - q0 : kBlockRows;
      const int64_t seen = piece.seen_before(q0 + rows);
      const float* q = space.q + q0 * width;
      widen(dout + q0 * args.dout_at.row, args.dout_at.row, nullptr, 1, rows, size, space.d_out, width);
      block_scores(piece, size, q, width, space.k_panels, q0, rows, space.scores, ld);
      block_scores(piece, size, space.d_out, width, space.v_panels, q0, rows, space.d_scores, ld);
      for (int64_t m = 0; m < rows; ++m) {
        backward_row(space.scores + m * ld, space.d_scores + m * ld, piece.seen_before(q0 + m + 1), lse[q0 + m],
                     delta != nullptr ? delta + q0 + m : nullptr);
      }
      for (int64_t m = 0; m < rows; m += kTileRows) {
        const int64_t group = rows - m < kTileRows ? rows - m : kTileRows;
        multiply<false>(static_cast<int>(group), width, piece.seen_before(q0 + m + group), space.d_scores + m * ld, ld,
                        1, space.k, width, space.rows_out + m * width, width);
      }
      if (space.all_rows != nullptr) {
        add_up(space.rows_out, rows * width, piece.first == 0, space.all_rows + q0 * width);
      } else {
        give(space.rows_out, q0, rows, args.scale, args.dq, args.dq_at);
        if (dbias != nullptr) {
          sum_rows(space.rows_out, width, rows, size, args.scale, q0 > 0, space.sums, dbias);
        }
      }
      const int64_t past = q0 - piece.first_query();  // keys of the piece that all of a causal block's queries see
      for (int64_t j = 0; j < seen; j += kTileRows) { // keys; causal queries before the first of them do not see them
        const int group = static_cast<int>(seen - j < kTileRows ? seen - j : kTileRows);
        const int64_t skip = args.causal && j > past ? j - past : 0;
        multiply<true>(group, width, rows - skip, space.scores + skip * ld + j, 1, ld, space.d_out + skip * width,
                       width, space.dv + j * width, width);
        multiply<true>(group, width, rows - skip, space.d_scores + skip * ld + j, 1, ld, q + skip * width, width,
                       space.dk + j * width, width);
      }
    }
    give(space.dk, piece.first, piece.count, 1, args.dk, args.dk_at);
    give(space.dv, piece.first, piece.count, 1, args.dv, args.dv_at);
    if (dbias != nullptr) {
      sum_rows(space.dk, width, piece.count, size, 1, piece.first > 0, space.sums, dbias + hidden);
      sum_rows(space.dv, width, piece.count, size, 1, piece.first > 0, space.sums, dbias + 2 * hidden);
    }
  });
  if (space.all_rows != nullptr) {
    give(space.all_rows, 0, args.queries, args.scale, args.dq, args.dq_at);
    if (dbias != nullptr) {
      sum_rows(space.all_rows, width, args.queries, size, args.scale, false, space.sums, dbias);
    }
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
