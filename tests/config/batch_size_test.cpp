#include <trireme/base/error.h>
#include <trireme/config/batch_size.h>

#include <gmock/gmock.h>

#include <random>
#include <regex>

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const BatchKeys& keys, int64_t ranks) {
  try {
    solve(keys, ranks);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(BatchSizeTest, TwoGiveTheThird) {
  EXPECT_EQ(solve({32, 4, std::nullopt, ""}, 2), (BatchTriple{32, 4, 4}));
  EXPECT_EQ(solve({32, std::nullopt, 4, ""}, 2), (BatchTriple{32, 4, 4}));
  EXPECT_EQ(solve({std::nullopt, 4, 4, ""}, 2), (BatchTriple{32, 4, 4}));
  EXPECT_EQ(solve({32, 4, 4, ""}, 2), (BatchTriple{32, 4, 4}));
}

TEST(BatchSizeTest, OneAloneHasAccumulationOne) {
  EXPECT_EQ(solve({32, std::nullopt, std::nullopt, ""}, 4), (BatchTriple{32, 8, 1}));
  EXPECT_EQ(solve({std::nullopt, 8, std::nullopt, ""}, 4), (BatchTriple{32, 8, 1}));
}

TEST(BatchSizeTest, AccumulationAloneIsNotEnough) {
  EXPECT_THAT(error_of({{}, {}, 4, "ds.json:2:3"}, 2),
              AllOf(HasSubstr("ds.json:2:3: no batch size: gradient_accumulation_steps alone"),
                    HasSubstr("Write \"train_batch_size\"")));
  EXPECT_THAT(error_of({}, 2), HasSubstr("neither train_batch_size nor train_micro_batch_size_per_gpu"));
}

TEST(BatchSizeTest, MismatchNamesAllNumbersAndTheNearestThatFit) {
  const std::string error = error_of({32, 4, 3, "ds.json:2:22"}, 2);
  EXPECT_THAT(error, AllOf(HasSubstr("ds.json:2:22: "), HasSubstr("2 data ranks"), HasSubstr("train_batch_size 32"),
                           HasSubstr("train_micro_batch_size_per_gpu 4"), HasSubstr("gradient_accumulation_steps 3")));
  EXPECT_THAT(
      error, HasSubstr("train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data ranks"));
  EXPECT_THAT(error, HasSubstr("Nearest that fit: 32 = 4 * 4 * 2, 30 = 5 * 3 * 2, 24 = 4 * 3 * 2."));
}

TEST(BatchSizeTest, FloorDivisionIsAMismatch) {
  // DeepSpeed divides 16 / (3 * 2) to 2 and then fails an assertion about 12 != 16.
  EXPECT_THAT(error_of({16, 3, {}, ""}, 2),
              AllOf(HasSubstr("gradient_accumulation_steps not given"), HasSubstr("18 = 3 * 3 * 2")));
  EXPECT_THAT(error_of({1, {}, {}, ""}, 3), AllOf(HasSubstr("3 data ranks"), HasSubstr("3 = 1 * 1 * 3")));
}

TEST(BatchSizeTest, NumbersOutOfRange) {
  EXPECT_THAT(error_of({0, {}, {}, ""}, 1), HasSubstr("train_batch_size must be at least 1"));
  EXPECT_THAT(error_of({{}, -1, {}, ""}, 1), HasSubstr("train_micro_batch_size_per_gpu must be at least 1"));
  EXPECT_THAT(error_of({{}, 1, INT64_MAX, ""}, 1), HasSubstr("less than 2^40"));
  EXPECT_THAT(error_of({{}, 1, {}, ""}, 0), HasSubstr("number of data ranks must be at least 1"));
  EXPECT_THAT(error_of({{}, int64_t{1} << 39, int64_t{1} << 39, ""}, 1 << 20), HasSubstr("do not fit"));
}

// Whatever is given: a solution fulfils the equation and keeps what was given; otherwise the
// proposals fulfil it, and solve() accepts each of them.
TEST(BatchSizeTest, SolutionsAndProposalsFulfilTheEquation) {
  std::mt19937 random(7);
  const auto number = [&](int most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
  int solved = 0;
  int proposals = 0;
  for (int i = 0; i < 3000; ++i) {
    const int64_t ranks = number(9);
    BatchKeys keys;
    keys.train = number(3) > 1 ? std::optional(number(4) * number(200)) : std::nullopt;
    keys.micro = number(2) > 1 ? std::optional(number(16)) : std::nullopt;
    keys.accumulation = number(2) > 1 ? std::optional(number(8)) : std::nullopt;
    if (!keys.train && !keys.micro) {
      continue;
    }
    const std::string error = error_of(keys, ranks);
    if (error.empty()) {
      const BatchTriple t = solve(keys, ranks);
      ASSERT_EQ(t.train, t.micro * t.accumulation * ranks);
      ASSERT_EQ(t.train, keys.train.value_or(t.train));
      ASSERT_EQ(t.micro, keys.micro.value_or(t.micro));
      ASSERT_EQ(t.accumulation, keys.accumulation.value_or(t.accumulation));
      ++solved;
      continue;
    }
    // A mismatch is never reported where whole numbers exist.
    if (keys.train && !(keys.micro && keys.accumulation)) {
      const int64_t known = ranks * keys.micro.value_or(1) * keys.accumulation.value_or(1);
      ASSERT_NE(*keys.train % known, 0) << error;
    }
    const std::regex triple("(\\d+) = (\\d+) \\* (\\d+) \\* (\\d+)");
    int count = 0;
    for (std::sregex_iterator it(error.begin(), error.end(), triple), end; it != end; ++it, ++count) {
      const BatchTriple t{std::stoll((*it)[1]), std::stoll((*it)[2]), std::stoll((*it)[3])};
      ASSERT_EQ(std::stoll((*it)[4]), ranks);
      ASSERT_EQ(t.train, t.micro * t.accumulation * ranks) << error;
      ASSERT_EQ(solve({t.train, t.micro, t.accumulation, ""}, ranks), t);
    }
    ASSERT_GE(count, 2) << error;
    ASSERT_LE(count, 3) << error;
    proposals += count;
  }
  EXPECT_GT(solved, 500);
  EXPECT_GT(proposals, 500);
}

} // namespace
} // namespace trireme::config
