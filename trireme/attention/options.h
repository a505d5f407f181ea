#pragma once

#include <cstdint>
#include <vector>

namespace trireme::attention {

/// Which blocks of keys a block of queries attends to. Names, parameters and defaults are DeepSpeed's.
enum class Kind {
  /// All.
  dense,
  /// Windows side by side, and the last blocks of each window for everybody. Source: Child et al. 2019,
  /// arXiv:1904.10509.
  fixed,
  /// Windows of listed sizes, listed global blocks, random blocks.
  variable,
  /// A sliding window, the first blocks global, random blocks. Source: Zaheer et al. 2020, arXiv:2007.14062.
  bigbird,
  /// A sliding window and listed global blocks. Source: Beltagy et al. 2020, arXiv:2004.05150.
  bslongformer,
  /// A sliding window.
  window
};

/// The names in configurations.
constexpr const char* kind_name(Kind kind) {
  constexpr const char* names[] = {"dense", "fixed", "variable", "bigbird", "bslongformer", "window"};
  return names[static_cast<int>(kind)];
}

/// All numbers but `block` and `seed` count blocks.
struct LayoutOptions {
  Kind kind = Kind::fixed;
  /// Tokens of a block: 16, 32, 64 or 128.
  int64_t block = 16;
  /// No block attends to a later one ("unidirectional").
  bool causal = false;
  /// Each head has patterns and random blocks of its own; otherwise all have those of head 0.
  bool different_layout_per_head = false;

  /// fixed: the window, which is a multiple of num_global_blocks.
  int64_t num_local_blocks = 4;
  /// fixed: global blocks at the end of each window. bigbird: the first ones of the sequence.
  int64_t num_global_blocks = 1;
  /// fixed, variable: global blocks also attend to all blocks. Not with `causal`.
  bool horizontal_global_attention = false;
  /// fixed: head h takes the (h modulo this)-th group of global blocks from the end of each window.
  int64_t num_different_global_patterns = 1;

  /// variable, bigbird: for each block of queries; with `causal` fewer where there are not so many.
  int64_t num_random_blocks = 0;
  /// variable: windows from the start of the sequence; the last size repeats.
  std::vector<int64_t> local_window_blocks = {4};
  /// variable, bslongformer: global blocks; beyond the sequence they have no effect.
  std::vector<int64_t> global_block_indices = {0};
  /// Empty: each index is one block; otherwise the ends, exclusive, of ranges that begin at the indices.
  std::vector<int64_t> global_block_end_indices = {};
  /// bigbird, bslongformer, window: w blocks around each, w / 2 on either side; with `causal` those before it.
  int64_t num_sliding_window_blocks = 3;

  /// Of the random blocks. The same on all ranks.
  uint64_t seed = 0;

  bool operator==(const LayoutOptions&) const = default;
};

} // namespace trireme::attention
