#pragma once

#include <trireme/kernels/fused_kernels.h>
#include <trireme/kernels/tile_products.h>

#include <algorithm>

// Which keys a block of queries sees, for attention_loops.h: pieces of the keys, and runs of keys in them.

namespace trireme::kernels {
namespace {

constexpr int64_t kBlockRows = 48;
/// Keys per piece: with their panels, scores and gradients they fit into a core's L2 cache.
constexpr int64_t kPieceKeys = 1024;

/// Keys [begin, end) of a piece. `begin` is a multiple of a register's floats.
struct KeyRun {
  int64_t begin, end;
};

/// Ascending, with a gap of a register's floats at least between two.
class KeyRuns {
 public:
  void add(int64_t begin, int64_t end) {
    if (count_ > 0 && runs_[count_ - 1].end == begin) {
      runs_[count_ - 1].end = end;
    } else {
      runs_[count_++] = {begin, end};
    }
  }
  bool is_empty() const { return count_ == 0; }
  const KeyRun* begin() const { return runs_; }
  const KeyRun* end() const { return runs_ + count_; }

 private:
  KeyRun runs_[kPieceKeys / kSmallestBlock / 2];
  int64_t count_ = 0;
};

/// Keys [first, first + count) of a head, and the queries that see some of them.
struct KeyPiece {
  int64_t first, count;
  bool causal;
  int64_t window;
  int64_t block;           ///< of the layout; 0: there is none
  const int32_t* blocks;   ///< of this head's pattern
  const int64_t* row_ends; ///< of this head's pattern

  int64_t first_query() const { return causal ? first : 0; }
  int64_t end_of_queries(int64_t queries) const {
    return window > 0 && first + count + window - 1 < queries ? first + count + window - 1 : queries;
  }
  /// Queries from q0 on that are processed together: with a layout those of one row.
  int64_t rows_from(int64_t q0, int64_t end) const {
    const int64_t last = block > 0 ? std::min(end, (q0 / block + 1) * block) : end;
    return std::min(last - q0, kBlockRows);
  }
  /// Number of the piece's keys that the queries before `end` see, where `end` is after first_query().
  int64_t seen_before(int64_t end) const { return causal && end - first < count ? end - first : count; }
  /// Number of the piece's first keys that are older than the query's window.
  int64_t unseen_by(int64_t query) const {
    const int64_t old = window > 0 ? query - window + 1 - first : 0;
    return old < 0 ? 0 : old < count ? old : count;
  }
  /// The keys that the queries [q0, q0 + rows) see, in whole panels or blocks at the front.
  KeyRuns runs_of(int64_t q0, int64_t rows) const {
    KeyRuns runs;
    const int64_t seen = seen_before(q0 + rows);
    if (block == 0) {
      runs.add(unseen_by(q0) / kPanel * kPanel, seen);
      return runs;
    }
    const int64_t row = q0 / block;
    const int32_t* const last = blocks + row_ends[row];
    const auto first_block = static_cast<int32_t>(first / block);
    for (const int32_t* key = std::lower_bound(blocks + row_ends[row - 1], last, first_block); key < last; ++key) {
      const int64_t begin = *key * block - first;
      if (begin >= seen) {
        break;
      }
      runs.add(begin, std::min(begin + block, seen));
    }
    return runs;
  }
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

/// Whether a query may see no key of a piece.
inline bool skips_keys(const AttentionArgs& args) {
  return args.window > 0 || args.layout.block > 0;
}

/// Calls f(piece) for all keys of a head of queries.
template <class F>
inline void each_piece(const AttentionArgs& args, int64_t head, bool backward, const F& f) {
  const int64_t most = keys_of_a_piece(args, backward);
  const KeyBlocks& layout = args.layout;
  const int64_t* ends = nullptr;
  if (layout.block > 0) { // ends[-1]: where the first row begins
    ends = layout.row_ends + (layout.patterns > 1 ? head : 0) * ((args.queries + layout.block - 1) / layout.block) + 1;
  }
  for (int64_t first = 0; first < args.keys; first += most) {
    f(KeyPiece{first, std::min(args.keys - first, most), args.causal, args.window, layout.block, layout.blocks, ends});
  }
}

} // namespace
} // namespace trireme::kernels
