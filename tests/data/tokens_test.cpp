#include <trireme/data/tokens.h>

#include "temporary_folder.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using TokensTest = TemporaryFolderTest;

at::Tensor rows(const std::vector<int64_t>& flat, int64_t count) {
  return at::tensor(flat, at::kLong).view({count, -1});
}

TEST_F(TokensTest, SampleIIsTokensILToILPlusL) {
  const auto file = write_tokens("a.bin", {10, 11, 12, 65535, 256, 15, 16, 17, 18, 19});
  const TokensDataset dataset({file}, 3);
  EXPECT_EQ(dataset.size(), 3);
  const std::vector<int64_t> indices{2, 0, 2};
  const Batch batch = dataset.get(indices);
  EXPECT_EQ(batch.samples, 3);
  EXPECT_TRUE(at::equal(batch.input(), rows({16, 17, 18, 10, 11, 12, 16, 17, 18}, 3)));
  EXPECT_TRUE(at::equal(batch.target(), rows({17, 18, 19, 11, 12, 65535, 17, 18, 19}, 3)));
  EXPECT_EQ(batch.input().scalar_type(), at::kLong);
  const Batch inputs = dataset.get_part(indices, Part::inputs);
  const Batch targets = dataset.get_part(indices, Part::targets);
  EXPECT_TRUE(inputs.targets.empty() && targets.inputs.empty());
  EXPECT_TRUE(at::equal(inputs.input(), batch.input()));
  EXPECT_TRUE(at::equal(targets.target(), batch.target()));
  EXPECT_EQ(dataset.describe(), "tokens: 10 in 3 samples of 3 (a.bin)");
}

TEST_F(TokensTest, TheLastSampleNeedsItsLastTarget) {
  for (int tokens = 4; tokens < 12; ++tokens) {
    std::vector<int> content(static_cast<size_t>(tokens));
    std::iota(content.begin(), content.end(), 0);
    const TokensDataset dataset({write_tokens("a.bin", content)}, 3);
    EXPECT_EQ(dataset.size(), (tokens - 1) / 3) << tokens;
    const std::vector<int64_t> last{dataset.size() - 1};
    EXPECT_EQ(dataset.get(last).target().max().item<int64_t>(), dataset.size() * 3);
  }
}

TEST_F(TokensTest, SeveralFilesAreOneAfterTheOther) {
  std::mt19937 random(3);
  std::vector<int> all;
  std::vector<std::filesystem::path> files;
  for (const size_t length : {1, 7, 2, 1, 30, 5}) { // shorter and longer than a sample
    std::vector<int> part(length);
    for (int& token : part) {
      token = static_cast<int>(random() % 65536);
    }
    all.insert(all.end(), part.begin(), part.end());
    files.push_back(write_tokens(concat(files.size(), ".bin"), part));
  }
  const TokensDataset parts(files, 4);
  const TokensDataset whole({write_tokens("whole.bin", all)}, 4);
  ASSERT_EQ(parts.size(), whole.size());
  std::vector<int64_t> indices(static_cast<size_t>(whole.size()));
  std::iota(indices.begin(), indices.end(), 0);
  EXPECT_TRUE(at::equal(parts.get(indices).input(), whole.get(indices).input()));
  EXPECT_TRUE(at::equal(parts.get(indices).target(), whole.get(indices).target()));
  EXPECT_EQ(whole.get(indices).input().view(-1)[9].item<int64_t>(), all[9]);
}

TEST_F(TokensTest, ATokenBeyondTheVocabularyIsNamed) {
  const auto first = write_tokens("first.bin", {1, 2, 3, 4});
  const auto second = write_tokens("second.bin", {5, 6, 49, 50, 7, 8});
  const TokensDataset dataset({first, second}, 3, /*vocab_size=*/50);
  const std::vector<int64_t> good{0};
  EXPECT_NO_THROW(dataset.get(good));
  const std::vector<int64_t> bad{0, 2};
  EXPECT_THAT(input_error([&] { dataset.get(bad); }),
              AllOf(HasSubstr("second.bin: token 3 is 50"), HasSubstr("has 50"), HasSubstr("vocab_size")));
  const std::vector<int64_t> as_target{1}; // tokens 3..6 of both: 50 is not among them
  EXPECT_NO_THROW(dataset.get(as_target));
}

TEST_F(TokensTest, UnusableFilesAreTheUsersInput) {
  const auto refused = [](const std::vector<std::filesystem::path>& files, int64_t length = 4) {
    return input_error([&] { TokensDataset dataset(files, length); });
  };
  const auto good = write_tokens("good.bin", {1, 2, 3, 4, 5});
  EXPECT_EQ(refused({good}), "");
  EXPECT_THAT(refused({}), HasSubstr("no files"));
  EXPECT_THAT(refused({folder_ / "absent.bin"}), AllOf(HasSubstr("absent.bin"), HasSubstr("No such file")));
  EXPECT_THAT(refused({folder_}), HasSubstr("not a file"));
  EXPECT_THAT(refused({write("empty.bin", "")}), AllOf(HasSubstr("empty.bin"), HasSubstr("it is empty")));
  EXPECT_THAT(refused({good, write("odd.bin", "abcde")}),
              AllOf(HasSubstr("odd.bin"), HasSubstr("5 bytes"), HasSubstr("uint16")));
  EXPECT_THAT(refused({good}, 5), AllOf(HasSubstr("good.bin has 5 tokens"), HasSubstr("sequence_length 5")));
  EXPECT_THAT(refused({good, good}, 10), HasSubstr("the data in 2 files has 10 tokens"));
  EXPECT_THAT(refused({good}, 0), HasSubstr("at least 1"));
  EXPECT_THAT(refused({good}, INT64_MAX), HasSubstr("good.bin has 5 tokens"));
}

TEST_F(TokensTest, IndicesOutsideAreACallersMistake) {
  const TokensDataset dataset({write_tokens("a.bin", {1, 2, 3, 4, 5})}, 2);
  for (const int64_t index : {-1, 2}) {
    const std::vector<int64_t> indices{index};
    EXPECT_THROW(dataset.get(indices), Error);
  }
}

} // namespace
} // namespace trireme::data
