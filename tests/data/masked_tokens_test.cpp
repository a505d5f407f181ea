// Masked tokens: which, how many, what becomes of them, and that nothing but (seed, sample, position) decides.
#include <trireme/data/labelled_text.h>
#include <trireme/data/make_dataset.h>
#include <trireme/data/masked_tokens.h>

#include "temporary_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <utility>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kLength = 40;
constexpr int64_t kSamples = 2000;
constexpr int64_t kMask = 7;
constexpr int64_t kVocabulary = 500;

// Token p of sample i is 1000 + p, which no random token is.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t length) : length_(length) {}
  int64_t size() const override { return kSamples; }
  Batch get(std::span<const int64_t> indices) const override {
    const at::Tensor row = at::arange(1000, 1000 + length_, at::kLong);
    const at::Tensor input = row.expand({std::ssize(indices), length_}).contiguous();
    return {{input}, {input + 1}, std::ssize(indices)};
  }
  std::string describe() const override { return "counting"; }

 private:
  int64_t length_;
};

MaskedTokens masked(int64_t seed = 1, int64_t length = kLength, double fraction = 0.15) {
  return MaskedTokens(std::make_shared<Counting>(length),
                      {.fraction = fraction, .mask_token = kMask, .vocabulary = kVocabulary, .seed = seed});
}

std::vector<int64_t> all_samples() {
  std::vector<int64_t> indices(kSamples);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(MaskedTokensTest, TargetsAreTheTokensThatMayHaveChanged) {
  const Batch batch = masked().get(all_samples());
  ASSERT_EQ(batch.inputs.size(), 2u);
  const at::Tensor original = Counting(kLength).get(all_samples()).input();
  const at::Tensor is_target = batch.target().ne(MaskedTokens::kIgnored);
  EXPECT_TRUE(is_target.sum(1).eq(6).all().item<bool>()) << "0.15 of 40, in every sample";
  EXPECT_TRUE(batch.target().masked_select(is_target).equal(original.masked_select(is_target)));
  EXPECT_TRUE(batch.input().masked_select(~is_target).equal(original.masked_select(~is_target)));
  EXPECT_EQ(batch.inputs[1].scalar_type(), at::kBool);
  EXPECT_TRUE(batch.inputs[1].all().item<bool>());
  EXPECT_EQ(batch.samples, kSamples);

  // Within four standard deviations of what the formula says.
  const at::Tensor seen = batch.input().masked_select(is_target), was = original.masked_select(is_target);
  const auto count = static_cast<double>(seen.numel());
  const auto near = [&](double share) {
    return testing::DoubleNear(share, 4 * std::sqrt(share * (1 - share) / count));
  };
  const auto share = [&](const at::Tensor& which) { return which.sum().item<double>() / count; };
  EXPECT_THAT(share(seen.eq(kMask)), near(0.8 + 0.1 / kVocabulary));
  EXPECT_THAT(share(seen.eq(was)), near(0.1));
  EXPECT_THAT(share(seen.lt(kVocabulary).logical_and(seen.ne(kMask))), near(0.1));
  EXPECT_TRUE(seen.lt(kVocabulary).logical_or(seen.eq(was)).all().item<bool>());
  const at::Tensor of_position = is_target.sum(0).to(at::kDouble);
  EXPECT_LT((of_position - 0.15 * kSamples).abs().max().item<double>(), 5 * std::sqrt(0.15 * 0.85 * kSamples));
  EXPECT_GT(seen.masked_select(seen.lt(kVocabulary)).max().item<int64_t>(), kVocabulary - 10);
}

// A rank reads other samples with it, a stage reads one part, a resumed run begins elsewhere.
TEST(MaskedTokensTest, ASampleIsTheSameWhereverItIsRead) {
  const MaskedTokens set = masked();
  const std::vector<int64_t> all{3, 4, 1999}, one{1999};
  const Batch batch = set.get(all), again = masked().get(one);
  EXPECT_TRUE(batch.input()[2].equal(again.input()[0]));
  EXPECT_TRUE(batch.target()[2].equal(again.target()[0]));
  EXPECT_FALSE(batch.input()[0].equal(batch.input()[1])) << "other samples, other places";
  const Batch inputs = set.get_part(all, Part::inputs), targets = set.get_part(all, Part::targets);
  EXPECT_THAT(inputs.targets, IsEmpty());
  EXPECT_THAT(targets.inputs, IsEmpty());
  EXPECT_TRUE(inputs.input().equal(batch.input()));
  EXPECT_TRUE(targets.target().equal(batch.target()));
  EXPECT_FALSE(masked(2).get(all).input().equal(batch.input())) << "another seed";
}

// As a Python program computes them from the formula: they must not change, because runs are resumed.
TEST(MaskedTokensTest, AreAFormulaOfSeedSampleAndPosition) {
  const Batch batch = masked().get(std::vector<int64_t>{0, 1999});
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> expected = {
      {{1, 3, 19, 21, 23, 36}, {7, 7, 7, 7, 1023, 7}}, {{2, 4, 5, 11, 32, 38}, {358, 7, 1005, 1011, 7, 1038}}};
  for (int64_t row = 0; row < 2; ++row) {
    const auto& [positions, inputs] = expected[static_cast<size_t>(row)];
    const at::Tensor where = batch.target()[row].ne(MaskedTokens::kIgnored).nonzero().flatten();
    EXPECT_TRUE(where.equal(at::tensor(positions, at::kLong))) << where;
    EXPECT_TRUE(batch.input()[row].index_select(0, where).equal(at::tensor(inputs, at::kLong))) << batch.input()[row];
  }
}

TEST(MaskedTokensTest, ShortSamplesHaveATargetToo) {
  const Batch batch = masked(1, 3).get(all_samples());
  EXPECT_TRUE(batch.target().ne(MaskedTokens::kIgnored).sum(1).eq(1).all().item<bool>());
  EXPECT_THAT(input_error([] { masked(1, 3, 0); }), HasSubstr("mask_fraction must be above 0"));
  EXPECT_THAT(input_error([] { masked(1, 3, 1); }), HasSubstr("mask_fraction must be above 0"));
}

constexpr const char* kBert = R"({"added_tokens": [
  {"id": 0, "content": "[PAD]", "special": true, "normalized": false}, {"id": 1, "content": "[UNK]", "special": true, "normalized": false},
  {"id": 2, "content": "[CLS]", "special": true, "normalized": false}, {"id": 3, "content": "[SEP]", "special": true, "normalized": false},
  {"id": 4, "content": "[MASK]", "special": true, "normalized": false}],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4,
            "good": 5, "bad": 6, "very": 7, "##ly": 8}}})";

class MaskedDataTest : public TemporaryFolderTest {
 protected:
  static std::string refused(const DataOptions& options) {
    return input_error([&] { make_datasets(options); });
  }
  static int64_t largest_input(const DataOptions& options) {
    const Datasets sets = make_datasets(options);
    std::vector<int64_t> all(static_cast<size_t>(sets.train->size()));
    std::iota(all.begin(), all.end(), 0);
    return sets.train->get(all).input().max().item<int64_t>();
  }
};

TEST_F(MaskedDataTest, TheTokenizerHasTheMaskToken) {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "good bad very ";
  }
  DataOptions options{.kind = DataOptions::Kind::text, .train = {write("a.txt", text)}, .sequence_length = 8};
  options.mask_fraction = 0.25;
  EXPECT_EQ(largest_input(options), 256) << "of bytes it comes after them";
  const Datasets sets = make_datasets(options);
  EXPECT_FALSE(sets.bytes_per_token || sets.unigram_entropy_per_byte) << "the loss is not that of the text's bytes";
  options.mask_token = 300;
  options.vocab_size = 301;
  EXPECT_EQ(largest_input(options), 300);
  options.vocab_size = 300;
  EXPECT_THAT(refused(options), AllOf(HasSubstr("mask_token 300 is outside of a vocabulary of 300"), HasSubstr("301")));

  options.mask_token = -1;
  options.vocab_size = 0;
  options.tokenizer = write("tokenizer.json", kBert).string();
  const at::Tensor input = make_datasets(options).train->get(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}).input();
  EXPECT_GT(input.eq(4).sum().item<int64_t>(), 8);
  std::string without = kBert;
  for (size_t at = 0; (at = without.find("[MASK]", at)) != std::string::npos;) {
    without.replace(at, 6, "[NONE]");
  }
  options.tokenizer = write("without.json", without).string();
  EXPECT_THAT(refused(options),
              AllOf(HasSubstr("has neither \"[MASK]\" nor \"<mask>\""), HasSubstr("model.mask_token")));
}

TEST_F(MaskedDataTest, TokensNeedOne) {
  DataOptions options{.kind = DataOptions::Kind::tokens, .sequence_length = 8, .vocab_size = 60};
  options.train = {write_tokens("a.bin", std::vector<int>(100, 5))};
  options.mask_fraction = 0.25;
  EXPECT_THAT(refused(options), HasSubstr("there is no tokenizer that has a mask token"));
  options.mask_token = 59;
  EXPECT_EQ(largest_input(options), 59);
  EXPECT_THAT(make_datasets(options).train->describe(), HasSubstr("25 % masked"));
}

class LabelledTextTest : public TemporaryFolderTest {
 protected:
  DataOptions options_{.kind = DataOptions::Kind::labelled_text, .sequence_length = 5, .classes = 2};
  std::string refused(const std::string& lines) {
    options_.train = {write("bad.jsonl", lines)};
    return input_error([&] { make_datasets(options_); });
  }
};

TEST_F(LabelledTextTest, TextsAreCutOrPaddedWithTheirSpecialTokens) {
  options_.tokenizer = write("tokenizer.json", kBert).string();
  options_.train = {write("a.jsonl",
                          "{\"text\": \"Very good\", \"label\": \"yes\", \"id\": 3}\n\n"
                          "{\"text\": \"bad bad bad goodly very\", \"label\": \"no\"}\n"),
                    write("b.jsonl", "{\"text\": \"good\", \"label\": \"yes\"}")};
  options_.validation = {write("c.jsonl", "{\"text\": \"very\", \"label\": \"yes\"}")};
  const Datasets sets = make_datasets(options_);
  ASSERT_EQ(sets.train->size(), 3);
  const Batch batch = sets.train->get(std::vector<int64_t>{0, 1, 2});
  EXPECT_TRUE(batch.input().equal(at::tensor({2, 7, 5, 3, 0, 2, 6, 6, 6, 3, 2, 5, 3, 0, 0}, at::kLong).view({3, 5})));
  EXPECT_TRUE(batch.inputs[1].equal(
      at::tensor({1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, at::kLong).view({3, 5}).to(at::kBool)));
  EXPECT_TRUE(batch.target().equal(at::tensor({1, 0, 1}, at::kLong))) << "names in the order of their bytes";
  EXPECT_TRUE(sets.validation->get(std::vector<int64_t>{0}).target().equal(at::tensor({1}, at::kLong)))
      << "as in the training data";
  EXPECT_THAT(sets.train->get_part(std::vector<int64_t>{0}, Part::targets).inputs, IsEmpty());
  EXPECT_THAT(sets.train->get_part(std::vector<int64_t>{0}, Part::inputs).targets, IsEmpty());
}

TEST_F(LabelledTextTest, WhatIsWrongIsNamedWithItsLine) {
  const std::string good = "{\"text\": \"ab\", \"label\": 1}\n";
  EXPECT_EQ(refused(good), "");
  EXPECT_THAT(refused(good + "{\"text\": \"ab\"}"),
              AllOf(HasSubstr("bad.jsonl line 2"), HasSubstr("\"label\" is missing")));
  EXPECT_THAT(refused(good + "[1]"), AllOf(HasSubstr("bad.jsonl line 2"), HasSubstr("must be an object")));
  EXPECT_THAT(refused(good + "{\"text\": 3, \"label\": 1}"), HasSubstr("bad.jsonl line 2"));
  EXPECT_THAT(refused(good + "{\"text\""), HasSubstr("bad.jsonl line 2"));
  EXPECT_THAT(refused(good + "{\"text\": \"a\", \"label\": 2}"),
              AllOf(HasSubstr("bad.jsonl line 2"), HasSubstr("label 2 is outside of 2 classes")));
  EXPECT_THAT(refused(good + "{\"text\": \"a\", \"label\": -1}"), HasSubstr("label -1 is outside"));
  EXPECT_THAT(refused(good + "{\"text\": \"a\", \"label\": \"x\"}"), HasSubstr("this label is a name"));
  EXPECT_THAT(refused("{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": \"a\", \"label\": \"y\"}\n"
                      "{\"text\": \"a\", \"label\": \"z\"}"),
              HasSubstr("one of 3 different labels, the model has 2 classes"));
  EXPECT_THAT(refused("{\"text\": \"\", \"label\": 1}"), HasSubstr("its text has no tokens"));
  EXPECT_THAT(refused("\n"), HasSubstr("there is no text in it"));
  options_.validation = {write("v.jsonl", "{\"text\": \"a\", \"label\": \"w\"}")};
  EXPECT_THAT(refused("{\"text\": \"a\", \"label\": \"x\"}"),
              AllOf(HasSubstr("v.jsonl line 1"), HasSubstr("no text of the training data has the label \"w\"")));
  EXPECT_THAT(refused(good),
              AllOf(HasSubstr("v.jsonl line 1"), HasSubstr("a name, those of the training data are numbers")));
  options_.validation = {write("v.jsonl", good)};
  EXPECT_THAT(refused("{\"text\": \"a\", \"label\": \"x\"}"),
              AllOf(HasSubstr("v.jsonl line 1"), HasSubstr("a number, those of the training data are names")));
}

} // namespace
} // namespace trireme::data
