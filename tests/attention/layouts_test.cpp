#include <trireme/attention/block_layout.h>

#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/json.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

namespace trireme::attention {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> keys(const BlockLayout& layout, int64_t row, int64_t head = 0) {
  const auto found = layout.keys_of(head, row);
  return {found.begin(), found.end()};
}

TEST(LayoutsTest, FixedByHand) {
  LayoutOptions options;
  options.causal = true;
  const BlockLayout layout = make_layout(options, 2, 10 * 16);
  EXPECT_THAT(keys(layout, 0), ElementsAre(0));
  EXPECT_THAT(keys(layout, 3), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(keys(layout, 6), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(keys(layout, 9, 1), ElementsAre(3, 7, 8, 9));
  EXPECT_EQ(layout.patterns(), 1);
}

TEST(LayoutsTest, BigbirdByHand) {
  LayoutOptions options;
  options.kind = Kind::bigbird;
  const BlockLayout layout = make_layout(options, 1, 6 * 16 - 5); // the last block is incomplete
  EXPECT_EQ(layout.blocks(), 6);
  EXPECT_THAT(keys(layout, 0), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(keys(layout, 3), ElementsAre(0, 2, 3, 4));
  EXPECT_DOUBLE_EQ(layout.density(), (6 + 3 + 4 + 4 + 4 + 3) / 36.0);
}

// Options for which check_layout() has no objection.
LayoutOptions random_options(std::mt19937& random) {
  const auto one_of = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random()) % (most - least + 1);
  };
  LayoutOptions options;
  options.kind = static_cast<Kind>(one_of(0, 5));
  options.causal = one_of(0, 1) == 1;
  options.different_layout_per_head = one_of(0, 1) == 1;
  options.num_global_blocks = one_of(1, 3);
  options.num_local_blocks = options.num_global_blocks * one_of(1, 4);
  options.horizontal_global_attention = !options.causal && one_of(0, 1) == 1;
  options.num_different_global_patterns =
      options.different_layout_per_head ? one_of(1, options.num_local_blocks / options.num_global_blocks) : 1;
  options.num_random_blocks = one_of(0, 3);
  options.local_window_blocks.clear();
  options.global_block_indices.clear();
  for (int64_t i = one_of(1, 4); i > 0; --i) {
    options.local_window_blocks.push_back(one_of(1, 5));
    options.global_block_indices.push_back(one_of(0, 30));
    options.global_block_end_indices.push_back(options.global_block_indices.back() + one_of(1, 4));
  }
  if (one_of(0, 1) == 1) {
    options.global_block_end_indices.clear();
  }
  options.num_sliding_window_blocks = one_of(1, 7);
  options.seed = random();
  return options;
}

nlohmann::json json_of(const LayoutOptions& options, int64_t heads, int64_t blocks) {
  return {{"mode", kind_name(options.kind)},
          {"attention", options.causal ? "unidirectional" : "bidirectional"},
          {"different_layout_per_head", options.different_layout_per_head},
          {"num_local_blocks", options.num_local_blocks},
          {"num_global_blocks", options.num_global_blocks},
          {"horizontal_global_attention", options.horizontal_global_attention},
          {"num_different_global_patterns", options.num_different_global_patterns},
          {"num_random_blocks", options.num_random_blocks},
          {"local_window_blocks", options.local_window_blocks},
          {"global_block_indices", options.global_block_indices},
          {"global_block_end_indices", options.global_block_end_indices},
          {"num_sliding_window_blocks", options.num_sliding_window_blocks},
          {"heads", heads},
          {"blocks", blocks}};
}

// Every cell of 600 layouts, and as many random blocks as there are to be.
TEST(LayoutsTest, AreThoseOfAScriptThatBuildsThemAsDocumented) {
  std::mt19937 random(7);
  struct Case {
    LayoutOptions options;
    int64_t heads, blocks;
  };
  std::vector<Case> cases;
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / concat("layouts_", ::getpid());
  {
    std::ofstream lines(file);
    for (int i = 0; i < 600; ++i) {
      cases.push_back(
          {random_options(random), 1 + static_cast<int64_t>(random() % 4), 1 + static_cast<int64_t>(random() % 40)});
      lines << json_of(cases.back().options, cases.back().heads, cases.back().blocks).dump() << '\n';
    }
  }
  const auto [status, printed] =
      test::run_command("\"" + test::python() + "\" \"" + test::source_dir() +
                        "/tests/attention/reference_layouts.py\" < \"" + file.string() + "\"");
  std::filesystem::remove(file);
  ASSERT_EQ(status, 0) << printed;
  std::istringstream lines(printed);
  int drawn = 0;
  for (const Case& one : cases) {
    const BlockLayout layout = make_layout(one.options, one.heads, one.blocks * one.options.block);
    for (int64_t head = 0; head < one.heads; ++head) {
      for (int64_t row = 0; row < one.blocks; ++row) {
        std::string expected, found(static_cast<size_t>(one.blocks), '0');
        ASSERT_TRUE(std::getline(lines, expected));
        for (const int32_t key : layout.keys_of(head, row)) {
          found[static_cast<size_t>(key)] = '1';
        }
        int64_t random_ones = 0;
        for (size_t column = 0; column < expected.size(); ++column) {
          random_ones += expected[column] == '?' && found[column] == '1' ? 1 : 0;
          if (expected[column] == '?') {
            expected[column] = found[column];
          }
        }
        EXPECT_LE(random_ones, one.options.num_random_blocks);
        drawn += static_cast<int>(random_ones);
        ASSERT_EQ(found, expected) << json_of(one.options, one.heads, one.blocks).dump() << " head " << head << " row "
                                   << row;
      }
    }
    std::string end;
    ASSERT_TRUE(std::getline(lines, end));
    ASSERT_EQ(end, "-");
  }
  EXPECT_GT(drawn, 1000);
}

TEST(LayoutsTest, RandomBlocksFollowFromTheSeed) {
  LayoutOptions options;
  options.kind = Kind::variable;
  options.local_window_blocks = {1};
  options.global_block_indices = {};
  options.num_random_blocks = 3;
  options.different_layout_per_head = true;
  const auto rows = [&](int64_t first_head, int64_t heads) {
    const BlockLayout layout = make_layout(options, heads, 64 * 16, first_head);
    std::vector<std::vector<int>> all;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < 64; ++row) {
        all.push_back(keys(layout, row, head));
      }
    }
    return all;
  };
  const auto all = rows(0, 4), second_half = rows(2, 2);
  EXPECT_TRUE(std::equal(second_half.begin(), second_half.end(), all.begin() + 128)) << "heads split among ranks";
  EXPECT_GT(std::set(all.begin(), all.end()).size(), 250u) << "no two rows alike";
  std::vector<int> seen(64);
  for (const std::vector<int>& row : all) {
    EXPECT_GE(row.size(), 3u);
    EXPECT_LE(row.size(), 4u);
    for (const int key : row) {
      ++seen[static_cast<size_t>(key)];
    }
  }
  EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 3) << "of 16 expected";
  options.seed = 1;
  EXPECT_NE(rows(0, 4), all);
}

TEST(LayoutsTest, TransposedAndBack) {
  LayoutOptions options;
  options.kind = Kind::bigbird;
  options.num_random_blocks = 2;
  options.different_layout_per_head = true;
  const BlockLayout layout = make_layout(options, 3, 20 * 16), by_keys = layout.transposed(),
                    back = by_keys.transposed();
  for (int64_t head = 0; head < 3; ++head) {
    for (int64_t row = 0; row < 20; ++row) {
      EXPECT_EQ(keys(back, row, head), keys(layout, row, head));
      for (const int key : keys(layout, row, head)) {
        EXPECT_THAT(keys(by_keys, key, head), testing::Contains(row));
      }
    }
  }
}

std::string refusal(const LayoutOptions& options, int64_t tokens = 1 << 20) {
  try {
    check_layout(options, tokens);
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST(LayoutsTest, RefusesWhatDeepSpeedRefuses) {
  EXPECT_EQ(refusal({}), "none");
  EXPECT_THAT(refusal({.block = 24}), HasSubstr("block: a block has 16, 32, 64 or 128 tokens, not 24"));
  EXPECT_THAT(refusal({.num_local_blocks = 4, .num_global_blocks = 3}),
              HasSubstr("not a multiple of num_global_blocks, 3"));
  EXPECT_THAT(refusal({.causal = true, .horizontal_global_attention = true}), HasSubstr("horizontal_global_attention"));
  EXPECT_THAT(refusal({.num_different_global_patterns = 2}), HasSubstr("Set different_layout_per_head to true."));
  EXPECT_THAT(refusal({.different_layout_per_head = true, .num_different_global_patterns = 5}),
              HasSubstr("a window of 4 blocks has 4 groups of 1, not 5"));
  LayoutOptions listed{.kind = Kind::bslongformer, .global_block_indices = {0, 7}, .global_block_end_indices = {2}};
  EXPECT_THAT(refusal(listed), HasSubstr("there are 1 ends of 2 ranges"));
  listed.global_block_end_indices = {2, 7};
  EXPECT_THAT(refusal(listed), HasSubstr("the range [7, 7) is empty"));
  listed.global_block_end_indices = {};
  listed.global_block_indices = {-1};
  EXPECT_THAT(refusal(listed), HasSubstr("-1 is negative"));
  EXPECT_THAT(refusal({.kind = Kind::variable, .local_window_blocks = {}}), HasSubstr("local_window_blocks"));
  EXPECT_THAT(
      refusal({.kind = Kind::bigbird, .num_sliding_window_blocks = 9}, 8 * 16),
      HasSubstr("num_sliding_window_blocks: 9 blocks of 16 tokens are more than the sequence has: 128 tokens, 8"));
  EXPECT_THAT(refusal({.kind = Kind::variable, .num_random_blocks = 9}, 100), HasSubstr("num_random_blocks"));
}

} // namespace
} // namespace trireme::attention
