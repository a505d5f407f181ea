#include <trireme/attention/block_layout.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>

#include <algorithm>
#include <string>
#include <vector>

namespace trireme::attention {
namespace {

// Blocks [begin, end) of a sequence.
struct Blocks {
  int64_t begin;
  int64_t end;

  bool has(int64_t block) const { return begin <= block && block < end; }
};

// The rules of one head.
struct Pattern {
  std::vector<Blocks> windows; // variable, fixed: side by side
  std::vector<Blocks> columns; // every block attends to them
  std::vector<Blocks> rows;    // they attend to every block
  int64_t radius = -1;         // of the sliding window; -1: there is none
  int64_t random = 0;
};

bool slides(const LayoutOptions& options) {
  return options.kind == Kind::bigbird || options.kind == Kind::bslongformer || options.kind == Kind::window;
}
bool draws(const LayoutOptions& options) {
  return options.kind == Kind::variable || options.kind == Kind::bigbird;
}
bool lists_globals(const LayoutOptions& options) {
  return options.kind == Kind::variable || options.kind == Kind::bslongformer;
}

// Side by side from the start, the last size again and again.
std::vector<Blocks> windows_of(const std::vector<int64_t>& sizes, int64_t blocks) {
  std::vector<Blocks> windows;
  for (int64_t begin = 0; begin < blocks;) {
    const int64_t size = sizes[std::min(windows.size(), sizes.size() - 1)];
    windows.push_back({begin, std::min(begin + size, blocks)});
    begin += size;
  }
  return windows;
}

// The last window may be too short for its group: the last blocks of the sequence then.
std::vector<Blocks> fixed_globals(const LayoutOptions& options, int64_t head, int64_t blocks) {
  const int64_t window = options.num_local_blocks, count = options.num_global_blocks;
  const int64_t first = window - (1 + head % options.num_different_global_patterns) * count;
  std::vector<Blocks> globals;
  for (int64_t begin = 0; begin < blocks; begin += window) {
    const int64_t at = begin + window <= blocks ? begin + first : std::min(begin + first, blocks - count);
    globals.push_back({std::max<int64_t>(0, at), std::min(std::max<int64_t>(0, at) + count, blocks)});
  }
  return globals;
}

std::vector<Blocks> listed_globals(const LayoutOptions& options, int64_t blocks) {
  std::vector<Blocks> globals;
  for (size_t i = 0; i < options.global_block_indices.size(); ++i) {
    const int64_t begin = options.global_block_indices[i];
    const int64_t end = options.global_block_end_indices.empty() ? begin + 1 : options.global_block_end_indices[i];
    if (begin < blocks) {
      globals.push_back({begin, std::min(end, blocks)});
    }
  }
  return globals;
}

Pattern pattern_of(const LayoutOptions& options, int64_t head, int64_t blocks) {
  Pattern pattern;
  switch (options.kind) {
    case Kind::dense:
      pattern.columns = {{0, blocks}};
      break;
    case Kind::fixed:
      pattern.windows = windows_of({options.num_local_blocks}, blocks);
      pattern.columns = fixed_globals(options, head, blocks);
      break;
    case Kind::variable:
      pattern.windows = windows_of(options.local_window_blocks, blocks);
      pattern.columns = listed_globals(options, blocks);
      break;
    case Kind::bigbird:
      pattern.columns = {{0, std::min(options.num_global_blocks, blocks)}};
      break;
    case Kind::bslongformer:
      pattern.columns = listed_globals(options, blocks);
      break;
    case Kind::window:
      break;
  }
  if (slides(options) || options.horizontal_global_attention) { // of bigbird and bslongformer always
    pattern.rows = pattern.columns;
  }
  pattern.radius = slides(options) ? options.num_sliding_window_blocks / 2 : -1;
  pattern.random = draws(options) ? options.num_random_blocks : 0;
  return pattern;
}

// `count` of [0, range) without repetition: Floyd's algorithm (Bentley 1987, CACM 30/9).
std::vector<int32_t> draw(int64_t count, int64_t range, uint64_t seed) {
  std::vector<int32_t> drawn;
  for (int64_t last = range - std::min(count, range); last < range; ++last) {
    seed += kMixStep;
    const auto chosen = static_cast<int32_t>(mix64(seed) % static_cast<uint64_t>(last + 1));
    const bool again = std::find(drawn.begin(), drawn.end(), chosen) != drawn.end();
    drawn.push_back(again ? static_cast<int32_t>(last) : chosen);
  }
  return drawn;
}

void append(std::vector<int32_t>& keys, Blocks blocks) {
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    keys.push_back(static_cast<int32_t>(block));
  }
}

std::vector<int32_t> keys_of_row(const Pattern& pattern, int64_t row, int64_t blocks, bool causal, uint64_t seed) {
  const int64_t end = causal ? row + 1 : blocks;
  const auto within = [&](Blocks some) { return Blocks{some.begin, std::min(some.end, end)}; };
  std::vector<int32_t> keys{static_cast<int32_t>(row)};
  if (std::any_of(pattern.rows.begin(), pattern.rows.end(), [&](Blocks some) { return some.has(row); })) {
    append(keys, {0, end});
  }
  if (!pattern.windows.empty()) {
    const auto after = std::upper_bound(pattern.windows.begin(), pattern.windows.end(), row,
                                        [](int64_t block, Blocks window) { return block < window.end; });
    append(keys, within(*after));
  }
  for (const Blocks& global : pattern.columns) {
    append(keys, within(global));
  }
  if (pattern.radius > 0) {
    append(keys, within({std::max<int64_t>(0, row - pattern.radius), std::min(row + pattern.radius + 1, blocks)}));
  }
  const std::vector<int32_t> random = draw(pattern.random, end, seed);
  keys.insert(keys.end(), random.begin(), random.end());
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

void require(bool holds, const char* key, const std::string& what, const std::string& advice) {
  if (!holds) {
    throw InputError("sparse_attention", concat(key, ": ", what), advice);
  }
}

} // namespace

void check_layout(const LayoutOptions& options) {
  check_block(options.block);
  require(!options.horizontal_global_attention || !options.causal, "horizontal_global_attention",
          "global blocks that attend to all blocks need attention \"bidirectional\"",
          "Leave it out, or set attention to \"bidirectional\".");
  if (options.kind == Kind::fixed) {
    const int64_t local = options.num_local_blocks, global = options.num_global_blocks;
    require(local >= 1 && global >= 1 && local % global == 0, "num_local_blocks",
            concat("the window, ", local, " blocks, is not a multiple of num_global_blocks, ", global),
            "Take a multiple.");
    const int64_t patterns = options.num_different_global_patterns;
    require(patterns >= 1 && patterns <= local / global, "num_different_global_patterns",
            concat("a window of ", local, " blocks has ", local / global, " groups of ", global, ", not ", patterns),
            "Take at most num_local_blocks / num_global_blocks.");
    require(patterns == 1 || options.different_layout_per_head, "num_different_global_patterns",
            concat(patterns, " patterns need a layout for each head"), "Set different_layout_per_head to true.");
  }
  if (options.kind == Kind::variable) {
    require(!options.local_window_blocks.empty() &&
                *std::min_element(options.local_window_blocks.begin(), options.local_window_blocks.end()) >= 1,
            "local_window_blocks", "every window has at least one block", "List sizes of 1 and more.");
  }
  if (lists_globals(options)) {
    const auto& begins = options.global_block_indices;
    const auto& ends = options.global_block_end_indices;
    require(ends.empty() || begins.size() == ends.size(), "global_block_end_indices",
            concat("there are ", ends.size(), " ends of ", begins.size(), " ranges"), "List an end for each index.");
    for (size_t i = 0; i < begins.size(); ++i) {
      require(begins[i] >= 0, "global_block_indices", concat(begins[i], " is negative"), "Count blocks from 0.");
      require(ends.empty() || begins[i] < ends[i], "global_block_end_indices",
              concat("the range [", begins[i], ", ", ends.empty() ? 0 : ends[i], ") is empty"),
              "Ends are exclusive: set it at least one higher.");
    }
  }
  require(!draws(options) || options.num_random_blocks >= 0, "num_random_blocks",
          concat(options.num_random_blocks, " is negative"), "Take 0 or more.");
  require(!slides(options) || options.num_sliding_window_blocks >= 1, "num_sliding_window_blocks",
          concat("a window has at least one block, not ", options.num_sliding_window_blocks), "Take 1 or more.");
  require(options.kind != Kind::bigbird || options.num_global_blocks >= 0, "num_global_blocks",
          concat(options.num_global_blocks, " is negative"), "Take 0 or more.");
}

void check_layout(const LayoutOptions& options, int64_t tokens) {
  check_layout(options);
  const int64_t blocks = (tokens + options.block - 1) / options.block;
  const auto fits = [&](const char* key, int64_t count) {
    require(count <= blocks, key,
            concat(count, " blocks of ", options.block, " tokens are more than the sequence has: ", tokens, " tokens, ",
                   blocks, " blocks"),
            "Take fewer or smaller blocks, or a longer sequence.");
  };
  if (draws(options)) {
    fits("num_random_blocks", options.num_random_blocks);
  }
  if (slides(options)) {
    fits("num_sliding_window_blocks", options.num_sliding_window_blocks);
  }
  if (options.kind == Kind::bigbird) {
    fits("num_global_blocks", options.num_global_blocks);
  }
}

BlockLayout make_layout(const LayoutOptions& options, int64_t heads, int64_t tokens, int64_t first_head) {
  check_layout(options);
  const int64_t blocks = (tokens + options.block - 1) / options.block;
  BlockLayout layout(options.block, blocks, options.causal);
  for (int64_t i = 0; i < (options.different_layout_per_head ? heads : 1); ++i) {
    const int64_t head = options.different_layout_per_head ? first_head + i : 0;
    const Pattern pattern = pattern_of(options, head, blocks);
    layout.add_pattern([&](int64_t row) {
      const uint64_t seed = mix64(mix64(options.seed + kMixStep * static_cast<uint64_t>(head + 1)) +
                                  kMixStep * static_cast<uint64_t>(row + 1));
      return keys_of_row(pattern, row, blocks, options.causal, seed);
    });
  }
  return layout;
}

} // namespace trireme::attention
