#pragma once

#include <trireme/attention/options.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::attention {

/// For each block of queries the blocks of keys that it attends to, for each head or for all heads alike.
///
/// Memory: 4 bytes for each block of keys of each row, 8 for each row.
class BlockLayout {
 public:
  /// `blocks` of queries and of keys, of `block` tokens each. Errors: InputError for no blocks, and blocks of another
  /// size than 16, 32, 64 or 128.
  BlockLayout(int64_t block, int64_t blocks, bool causal);

  /// Appends the rows of one more pattern: keys_of(row) for each row, ascending.
  template <typename KeysOf>
  void add_pattern(const KeysOf& keys_of) {
    for (int64_t row = 0; row < blocks_; ++row) {
      const std::vector<int32_t> keys = keys_of(row);
      keys_.insert(keys_.end(), keys.begin(), keys.end());
      row_ends_.push_back(static_cast<int64_t>(keys_.size()));
    }
  }

  /// Tokens of a block. The last block of a sequence may have fewer.
  int64_t block() const { return block_; }
  /// Blocks of the sequence.
  int64_t blocks() const { return blocks_; }
  /// Within a block on the diagonal, tokens do not attend to later ones.
  bool causal() const { return causal_; }
  /// 1 if all heads have the same.
  int64_t patterns() const { return (std::ssize(row_ends_) - 1) / blocks_; }
  /// Numbers of the blocks of keys, ascending, without repetition; at least one.
  std::span<const int32_t> keys_of(int64_t head, int64_t row) const {
    const int64_t at = (patterns() == 1 ? 0 : head) * blocks_ + row;
    return std::span(keys_).subspan(row_ends_[at], row_ends_[at + 1] - row_ends_[at]);
  }
  /// keys_of() of row after row and pattern after pattern, and where each ends: [patterns * blocks + 1], from 0.
  std::span<const int32_t> all_keys() const { return keys_; }
  std::span<const int64_t> row_ends() const { return row_ends_; }
  /// The same layout by keys: for each block of keys the blocks of queries that attend to it. keys_of() then returns
  /// those, perhaps none.
  BlockLayout transposed() const;
  /// Pairs of blocks in all patterns over the pairs that dense attention has (with causal(): on and below the
  /// diagonal).
  double density() const;

 private:
  int64_t block_;
  int64_t blocks_;
  bool causal_;
  std::vector<int32_t> keys_;
  std::vector<int64_t> row_ends_ = {0};
};

/// Errors: InputError for another number of tokens than 16, 32, 64 or 128.
void check_block(int64_t block);
/// Refuses options that DeepSpeed refuses. Errors: InputError with the key that is wrong.
void check_layout(const LayoutOptions& options);
/// The same for a sequence of `tokens`: windows, random and global blocks that it has not.
void check_layout(const LayoutOptions& options, int64_t tokens);

/// The layout of a sequence of `tokens`, the last block of which may be incomplete, for heads [first_head, first_head +
/// heads) of a layer. Shorter than check_layout() demands: windows and global blocks end with the sequence. Each block
/// of queries attends to its own block at least.
///
/// Deterministic: random blocks follow from the seed, the head and the row. Cost: the blocks of the layout.
BlockLayout make_layout(const LayoutOptions& options, int64_t heads, int64_t tokens, int64_t first_head = 0);

} // namespace trireme::attention
