#include <trireme/data/make_dataset.h>

#include "temporary_folder.h"

#include <trireme/data/tokenizer.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using MakeDatasetTest = TemporaryFolderTest;

std::string refused(const DataOptions& options) {
  return input_error([&] { make_datasets(options); });
}

TEST_F(MakeDatasetTest, TextIsSplitOrHasItsOwnValidation) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += static_cast<char>('a' + i % 17);
  }
  DataOptions options{.kind = DataOptions::Kind::text, .train = {write("a.txt", text)}, .sequence_length = 4};
  const Datasets alone = make_datasets(options);
  EXPECT_EQ(alone.validation, nullptr);
  EXPECT_EQ(alone.train->size(), 24);
  EXPECT_EQ(alone.tokenizer->vocab_size(), 256);
  EXPECT_EQ(make_dataset(options, Split::validation), nullptr);
  EXPECT_THAT(input_error([&] { make_loader(nullptr, options, Split::validation, 2); }),
              HasSubstr("validation_fraction"));

  options.validation_fraction = 0.2;
  const Datasets split = make_datasets(options);
  EXPECT_EQ(split.train->size(), 19);     // 80 bytes
  ASSERT_EQ(split.validation->size(), 4); // 20 bytes
  const std::vector<int64_t> first{0};
  EXPECT_EQ(split.validation->get(first).input()[0][0].item<int64_t>(), text[80]);
  EXPECT_DOUBLE_EQ(*split.bytes_per_token, 1.0);
  EXPECT_GT(*split.unigram_entropy_per_byte, 2.0);

  options.validation = {write("b.txt", text.substr(0, 50)), write("c.txt", "xyz")};
  const Datasets separate = make_datasets(options);
  EXPECT_EQ(separate.train->size(), 24);
  EXPECT_EQ(separate.validation->size(), 13);
  EXPECT_EQ(make_dataset(options, Split::train)->size(), 24);
  EXPECT_EQ(make_dataset(options, Split::validation)->size(), 13);
}

TEST_F(MakeDatasetTest, TextProblemsNameTheOption) {
  DataOptions options{.kind = DataOptions::Kind::text, .train = {write("a.txt", "hello hello")}, .sequence_length = 4};
  options.validation_fraction = 0.3;
  EXPECT_THAT(refused(options), AllOf(HasSubstr("validation_fraction 0.3"), HasSubstr("a.txt has 3 tokens")));
  options.validation_fraction = 0;
  options.vocab_size = 100;
  EXPECT_THAT(refused(options), AllOf(HasSubstr("has 256 tokens"), HasSubstr("vocab_size is 100")));
  options.vocab_size = 256;
  EXPECT_EQ(refused(options), "");
  options.train.clear();
  EXPECT_THAT(refused(options), HasSubstr("data.train"));
}

TEST_F(MakeDatasetTest, TokensCarryTheVocabularyCheckToBothSplits) {
  DataOptions options{.kind = DataOptions::Kind::tokens, .train = {write_tokens("t.bin", {1, 2, 3, 4, 5, 6, 7})}};
  options.validation = {write_tokens("v.bin", {1, 2, 90})};
  options.sequence_length = 2;
  options.vocab_size = 91;
  const Datasets datasets = make_datasets(options);
  EXPECT_EQ(datasets.train->size(), 3);
  EXPECT_EQ(datasets.validation->size(), 1);
  EXPECT_FALSE(datasets.bytes_per_token.has_value());
  EXPECT_EQ(datasets.tokenizer, nullptr);
  options.vocab_size = 90;
  EXPECT_THAT(refused(options), AllOf(HasSubstr("v.bin: token 2 is 90"), HasSubstr("0 to 89")))
      << "of the validation at once";
  options.vocab_size = 7;
  options.validation.clear();
  EXPECT_THAT(refused(options), AllOf(HasSubstr("t.bin: token 6 is 7"), HasSubstr("0 to 6"))) << "of the training too";
}

TEST_F(MakeDatasetTest, TokensHaveTheTokenizerThatIsNamed) {
  DataOptions options{.kind = DataOptions::Kind::tokens, .train = {write_tokens("t.bin", {1, 2, 3, 4, 255, 6, 300})}};
  options.sequence_length = 2;
  options.tokenizer = "bytes";
  EXPECT_THAT(refused(options), AllOf(HasSubstr("token 6 is 300"), HasSubstr("256")))
      << "no vocab_size: the tokenizer's";
  options.vocab_size = 301;
  const Datasets datasets = make_datasets(options);
  ASSERT_NE(datasets.tokenizer, nullptr);
  EXPECT_EQ(datasets.tokenizer->vocab_size(), 256);
  options.vocab_size = 100;
  EXPECT_THAT(refused(options), AllOf(HasSubstr("has 256 tokens"), HasSubstr("vocab_size is 100")));
  options.tokenizer = (folder_ / "tokenizer.json").string();
  EXPECT_THAT(refused(options), HasSubstr("tokenizer.json"));
}

TEST_F(MakeDatasetTest, ImagesNeedLabelsForBothSplits) {
  const auto images = write("i", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x01"
                                             "ab",
                                             18));
  const auto labels = write("l", std::string("\0\0\x08\x01\0\0\0\x02\0\x01", 10));
  DataOptions options{.kind = DataOptions::Kind::images, .train = {images}};
  EXPECT_THAT(refused(options), HasSubstr("0 of labels"));
  options.train_labels = {labels};
  EXPECT_EQ(make_datasets(options).train->size(), 2);
  options.validation_labels = {labels};
  EXPECT_THAT(refused(options), HasSubstr("0 files of images"));
  options.validation = {images};
  EXPECT_EQ(make_datasets(options).validation->size(), 2);
  options.classes = 1;
  EXPECT_THAT(refused(options), HasSubstr("label 1 is 1"));
}

TEST_F(MakeDatasetTest, TheValidationLoaderReadsEverySampleOnceInOrder) {
  std::vector<int> tokens(12);
  DataOptions options{.kind = DataOptions::Kind::tokens, .train = {write_tokens("t.bin", tokens)}};
  options.sequence_length = 1; // 11 samples
  const std::shared_ptr<const Dataset> dataset = make_dataset(options, Split::train);
  int64_t real = 0;
  for (int64_t rank = 0; rank < 2; ++rank) {
    auto loader = make_loader(dataset, options, Split::validation, 3, rank, 2);
    EXPECT_EQ(loader.batches_per_epoch(), 2);
    EXPECT_FALSE(loader.sampler().options().shuffle);
    while (const auto batch = loader.next()) {
      EXPECT_EQ(batch->input().size(0), 3);
      real += batch->samples;
    }
  }
  EXPECT_EQ(real, 11);
  options.drop_last = true;
  const auto train = make_loader(dataset, options, Split::train, 3, 0, 2);
  EXPECT_EQ(train.batches_per_epoch(), 1);
  EXPECT_TRUE(train.sampler().options().shuffle);
}

} // namespace
} // namespace trireme::data
