#include <trireme/data/make_dataset.h>

#include "temporary_folder.h"

#include <trireme/data/tokenize/tokenize.h>
#include <trireme/data/tokenizer.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

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

// Batches of both splits and what converts losses.
std::vector<at::Tensor> everything(const Datasets& datasets) {
  std::vector<at::Tensor> all = {at::full({}, datasets.bytes_per_token.value_or(0), at::kDouble),
                                 at::full({}, datasets.unigram_entropy_per_byte.value_or(0), at::kDouble)};
  for (const auto& set : {datasets.train, datasets.validation}) {
    std::vector<int64_t> indices(static_cast<size_t>(set->size()));
    std::iota(indices.rbegin(), indices.rend(), 0);
    const Batch batch = set->get(indices);
    all.insert(all.end(), batch.inputs.begin(), batch.inputs.end());
    all.insert(all.end(), batch.targets.begin(), batch.targets.end());
  }
  return all;
}

// From the cache as from memory.
void expect_same_from_cache(const DataOptions& options, const std::filesystem::path& cache) {
  EXPECT_TRUE(has_texts(options));
  const Datasets in_memory = make_datasets(options, {}, cache); // nothing is there yet
  EXPECT_FALSE(std::filesystem::exists(cache));
  prepare_tokens(options, cache);
  const Datasets cached = make_datasets(options, {}, cache);
  const std::vector<at::Tensor> expected = everything(in_memory);
  const std::vector<at::Tensor> found = everything(cached);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
  EXPECT_EQ(cached.train->describe(), in_memory.train->describe());
  EXPECT_EQ(cached.validation->describe(), in_memory.validation->describe());
}

TEST_F(MakeDatasetTest, CachedTextsAreTheSame) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += concat("line ", i * i % 97, i % 3 == 0 ? "\n" : "\xC3\xA4 ");
  }
  DataOptions options{.kind = DataOptions::Kind::text, .train = {write("a.txt", text)}, .sequence_length = 7};
  options.validation_fraction = 0.21;
  expect_same_from_cache(options, folder_ / "cache");
  options.validation = {write("b.txt", text.substr(100, 500))};
  options.mask_fraction = 0.15;
  expect_same_from_cache(options, folder_ / "other");

  options.train = {write("short.txt", "abc")};
  prepare_tokens(options, folder_ / "cache");
  EXPECT_THAT(input_error([&] { make_datasets(options, {}, folder_ / "cache"); }),
              AllOf(HasSubstr("short.txt has 3 tokens"), HasSubstr("needs 7 + 1")));
  options.train = {folder_ / "absent.txt"};
  prepare_tokens(options, folder_ / "cache"); // says nothing: make_datasets() does
  EXPECT_THAT(input_error([&] { make_datasets(options, {}, folder_ / "cache"); }), HasSubstr("absent.txt"));
}

TEST_F(MakeDatasetTest, ATextThatChangesWhileItIsTokenizedIsRefused) {
  const DataOptions options{
      .kind = DataOptions::Kind::text, .train = {write("a.txt", std::string(8 << 20, 'a'))}, .sequence_length = 7};
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (std::ofstream out(options.train[0], std::ios::app); !done;
         std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      out << 'b' << std::flush;
    }
  });
  EXPECT_THAT(input_error([&] { prepare_tokens(options, folder_ / "cache"); }),
              HasSubstr("a.txt has changed while it was read"));
  done = true;
  writer.join();
  prepare_tokens(options, folder_ / "cache");
  EXPECT_GT(make_datasets(options, {}, folder_ / "cache").train->size(), 0);
}

TEST_F(MakeDatasetTest, OtherSamplesHaveAnotherChecksumAndNoPosition) {
  const auto text = [&](char letter) {
    const DataOptions options{.kind = DataOptions::Kind::text,
                              .train = {write("a.txt", std::string(100, 'a') + letter)},
                              .sequence_length = 7};
    std::filesystem::remove_all(folder_ / "cache"); // made again of the same text: the same tokens
    prepare_tokens(options, folder_ / "cache");
    return make_datasets(options, {}, folder_ / "cache").train;
  };
  const auto dataset = text('b');
  EXPECT_NE(dataset->checksum(), 0u);
  EXPECT_EQ(text('b')->checksum(), dataset->checksum());
  const auto other = text('c');
  EXPECT_NE(other->checksum(), dataset->checksum());
  const DataOptions raw{.kind = DataOptions::Kind::tokens,
                        .train = {write_tokens("t.bin", std::vector<int>(101, 7))},
                        .sequence_length = 7};
  EXPECT_EQ(make_datasets(raw).train->checksum(), 0u) << "unknown";
  const auto mixture = [](const std::shared_ptr<const Dataset>& a, const std::shared_ptr<const Dataset>& b) {
    return std::make_shared<Mixture>(std::vector<Mixture::Set>{{a, 1, "a"}, {b, 1, "b"}}, Mixture::Order{});
  };
  EXPECT_NE(mixture(dataset, other)->checksum(), mixture(other, dataset)->checksum());
  EXPECT_EQ(mixture(dataset, other)->fingerprint(), mixture(other, dataset)->fingerprint()) << "as earlier programs";
  EXPECT_EQ(mixture(dataset, make_datasets(raw).train)->checksum(), 0u);

  const auto loader = [](const std::shared_ptr<const Dataset>& of) { return make_loader(of, {}, Split::train, 2); };
  const nlohmann::json saved = nlohmann::json::parse(loader(dataset).state().dump());
  EXPECT_EQ(input_error([&] { loader(text('b')).load_state(saved); }), "");
  auto refusing = loader(other);
  refusing.next();
  const nlohmann::json before = refusing.state();
  EXPECT_THAT(input_error([&] { refusing.load_state(saved); }),
              AllOf(HasSubstr("of other samples"), HasSubstr("a.txt"), HasSubstr("model.init_from")));
  EXPECT_EQ(refusing.state(), before);
  nlohmann::json earlier = saved;
  earlier.erase("checksum");
  EXPECT_EQ(input_error([&] { loader(other).load_state(earlier); }), "");
}

TEST_F(MakeDatasetTest, ATokenizerOfCachedTextIsReadWhenItIsUsed) {
  const std::string vocabulary = R"({"a": 0, "b": 1, "c": 2, "ab": 3})";
  write("vocab.json", vocabulary);
  const std::string merges = "#version: 0.2\na b\n";
  write("merges.txt", merges);
  DataOptions options{.kind = DataOptions::Kind::text, .train = {write("a.txt", "abcabcaabbccabcabc")}};
  options.tokenizer = folder_.string();
  options.sequence_length = 3;
  const Datasets in_memory = make_datasets(options);
  prepare_tokens(options, folder_ / "cache");
  const auto open = [&] { return make_datasets(options, {}, folder_ / "cache"); };
  const Datasets cached = open();
  EXPECT_EQ(cached.tokenizer->vocab_size(), 4);
  EXPECT_EQ(cached.train->describe(), in_memory.train->describe());
  EXPECT_EQ(cached.tokenizer->encode("cab"), in_memory.tokenizer->encode("cab"));
  EXPECT_EQ(cached.tokenizer->encode_with_threads("cab", 2), in_memory.tokenizer->encode("cab"));
  EXPECT_EQ(cached.tokenizer->decode(std::vector<int32_t>{3, 2}), "abc");
  EXPECT_EQ(cached.tokenizer->describe(), in_memory.tokenizer->describe());
  EXPECT_EQ(cached.tokenizer->is_local(), in_memory.tokenizer->is_local());

  const Datasets unread = open();
  write("merges.txt", "#version: 0.2\n");
  EXPECT_EQ(unread.tokenizer->vocab_size(), 4);
  EXPECT_THAT(input_error([&] { unread.tokenizer->encode("cab"); }),
              HasSubstr("has changed since the data were opened"));
  write("merges.txt", merges);
  EXPECT_EQ(unread.tokenizer->encode("cab"), in_memory.tokenizer->encode("cab"));
  options.vocab_size = 3;
  EXPECT_THAT(input_error(open), AllOf(HasSubstr("has 4 tokens"), HasSubstr("the model's vocab_size is 3")));
}

TEST_F(MakeDatasetTest, CachedTextsWithLabelsAreTheSame) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += concat("{\"text\": \"", std::string(static_cast<size_t>(1 + i % 9), static_cast<char>('a' + i % 7)),
                    "\", \"label\": \"", i % 3 == 0 ? "good" : "bad", "\"}\n");
  }
  DataOptions options{.kind = DataOptions::Kind::labelled_text, .train = {write("a.jsonl", lines)}};
  options.validation = {write("b.jsonl", lines.substr(0, lines.find('\n', 300) + 1))};
  options.sequence_length = 6;
  options.classes = 2;
  expect_same_from_cache(options, folder_ / "cache");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "cache"), {}), 3); // entry, folder, lock

  options.classes = 1;
  prepare_tokens(options, folder_ / "cache");
  EXPECT_THAT(input_error([&] { make_datasets(options, {}, folder_ / "cache"); }),
              HasSubstr("the model has 1 classes"));
}

TEST_F(MakeDatasetTest, AMixtureOfTextAndTokens) {
  DataOptions text{.kind = DataOptions::Kind::text, .train = {write("a.txt", std::string(200, 'a'))}};
  text.validation_fraction = 0.25;
  const DataOptions tokens{.kind = DataOptions::Kind::tokens,
                           .train = {write_tokens("t.bin", std::vector<int>(101, 7))}};
  DataOptions options{.kind = DataOptions::Kind::mixture, .sequence_length = 10, .tokenizer = "bytes"};
  options.sets = {{std::make_shared<DataOptions>(text), 3, "run.json:4:5: data.sets[0].data"},
                  {std::make_shared<DataOptions>(tokens), 1, "run.json:5:5: data.sets[1].data"}};
  const Datasets sets = make_datasets(options);
  ASSERT_NE(sets.mixture, nullptr);
  EXPECT_EQ(sets.train, sets.mixture);
  EXPECT_EQ(sets.validation->size(), 4); // 50 bytes
  EXPECT_FALSE(sets.bytes_per_token);    // tokens have none
  std::vector<int64_t> indices(40);
  std::iota(indices.begin(), indices.end(), 0);
  const at::Tensor first = sets.train->get(indices).input().select(1, 0);
  EXPECT_EQ(first.eq('a').sum().item<int64_t>(), 30);
  EXPECT_EQ(first.eq(7).sum().item<int64_t>(), 10);
  EXPECT_TRUE(has_texts(options));
  EXPECT_TRUE(options.has_validation());

  // Shards of another tokenizer are refused by the place of their set.
  TokenizeOptions other{.inputs = {text.train[0]}, .out = folder_ / "shards"};
  other.tokenizer =
      write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})").string();
  tokenize_files(other);
  options.sets[1].data =
      std::make_shared<DataOptions>(DataOptions{.kind = DataOptions::Kind::tokens, .train = {folder_ / "shards"}});
  EXPECT_THAT(refused(options), AllOf(HasSubstr("run.json:5:5: data.sets[1].data: "), HasSubstr("another tokenizer")));

  options.sets.pop_back();
  EXPECT_DOUBLE_EQ(*make_datasets(options).bytes_per_token, 1);
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
