#include <trireme/attention/block_layout.h>

#include <trireme/base/error.h>

namespace trireme::attention {

void check_block(int64_t block) {
  if (block != 16 && block != 32 && block != 64 && block != 128) {
    throw InputError("sparse_attention", concat("block: a block has 16, 32, 64 or 128 tokens, not ", block),
                     "Take one of these.");
  }
}

BlockLayout::BlockLayout(int64_t block, int64_t blocks, bool causal) : block_(block), blocks_(blocks), causal_(causal) {
  check_block(block);
  if (blocks < 1) {
    throw InputError("sparse_attention", "a layout has no blocks", "Make it for a token at least.");
  }
}

BlockLayout BlockLayout::transposed() const {
  BlockLayout by_keys(block_, blocks_, causal_);
  for (int64_t pattern = 0; pattern < patterns(); ++pattern) {
    std::vector<std::vector<int32_t>> rows(static_cast<size_t>(blocks_));
    for (int64_t row = 0; row < blocks_; ++row) {
      for (const int32_t key : keys_of(pattern, row)) {
        rows[static_cast<size_t>(key)].push_back(static_cast<int32_t>(row));
      }
    }
    by_keys.add_pattern([&](int64_t key) { return rows[static_cast<size_t>(key)]; });
  }
  return by_keys;
}

double BlockLayout::density() const {
  const double all = static_cast<double>(blocks_) * static_cast<double>(causal_ ? blocks_ + 1 : 2 * blocks_) / 2;
  return static_cast<double>(keys_.size()) / (all * static_cast<double>(patterns()));
}

} // namespace trireme::attention
