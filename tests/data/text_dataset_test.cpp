#include <trireme/data/text.h>

#include "pack.h"
#include "temporary_folder.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <cmath>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using TextDatasetTest = TemporaryFolderTest;

/// One token a byte, or one for each two, numbered from `offset`.
class FakeTokenizer : public Tokenizer {
 public:
  FakeTokenizer(size_t bytes_each, int32_t offset) : bytes_each_(bytes_each), offset_(offset) {}
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); i += bytes_each_) {
      ids.push_back(offset_ + static_cast<unsigned char>(text[i]));
    }
    return ids;
  }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  int64_t vocab_size() const override { return offset_ + 256; }
  std::string describe() const override { return "fake"; }

 private:
  size_t bytes_each_;
  int32_t offset_;
};

TEST_F(TextDatasetTest, CutsLikeTokens) {
  const std::string text = "abcdefghij\xFF";
  for (const int32_t offset : {0, 65280, 100000}) { // vocabularies of at most and beyond 16 bits
    const FakeTokenizer tokenizer(1, offset);
    const TextDataset dataset(text, tokenizer, 5, "some text");
    ASSERT_EQ(dataset.size(), 2);
    EXPECT_EQ(dataset.num_tokens(), 11);
    const std::vector<int64_t> indices{1, 0};
    const Batch batch = dataset.get(indices);
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t i = 0; i < 5; ++i) {
        const auto at = static_cast<size_t>(5 * indices[static_cast<size_t>(row)] + i);
        EXPECT_EQ(batch.input()[row][i].item<int64_t>(), offset + static_cast<unsigned char>(text[at]));
        EXPECT_EQ(batch.target()[row][i].item<int64_t>(), offset + static_cast<unsigned char>(text[at + 1]));
      }
    }
  }
}

TEST_F(TextDatasetTest, KnowsBytesPerToken) {
  const TextDataset dataset(std::string(100, 'x'), FakeTokenizer(4, 0), 5, "x");
  EXPECT_EQ(dataset.num_tokens(), 25);
  EXPECT_DOUBLE_EQ(dataset.bytes_per_token(), 4.0);
}

TEST_F(TextDatasetTest, UnigramEntropyIsTheCrossEntropyUnderTheTrainFrequencies) {
  const FakeTokenizer bytes(1, 0);
  const TextDataset train("aaab", bytes, 1, "train"); // with one more each: a 4, b 2, all others 1, of 260
  const TextDataset validation("aac", bytes, 1, "validation");
  EXPECT_NEAR(validation.unigram_entropy_per_byte(train), (2 * std::log(260.0 / 4) + std::log(260.0 / 1)) / 3, 1e-12);

  std::string half;
  for (int i = 0; i < 500000; ++i) {
    half += "xy";
  }
  const TextDataset coin(half, bytes, 1, "coin");
  EXPECT_NEAR(coin.unigram_entropy_per_byte(coin), std::log(2.0), 1e-3);
  // Tokens of another tokenizer do not change it: it is about bytes.
  EXPECT_EQ(coin.unigram_entropy_per_byte(coin),
            TextDataset(half, FakeTokenizer(2, 0), 1, "").unigram_entropy_per_byte(coin));
}

TEST_F(TextDatasetTest, TooShortAndMissingTextIsTheUsersInput) {
  const FakeTokenizer bytes(1, 0);
  EXPECT_THAT(input_error([&] { TextDataset("abc", bytes, 3, "a.txt"); }),
              AllOf(HasSubstr("a.txt has 3 tokens"), HasSubstr("3 + 1")));
  EXPECT_THROW(TextDataset("", bytes, 3, "a.txt"), InputError);
  const auto a = write("a.txt", "one\n");
  const auto b = write("b.txt", "two");
  EXPECT_EQ(read_texts({a, b, a}), "one\ntwoone\n");
  EXPECT_THAT(input_error([&] { read_texts({a, folder_ / "absent.txt"}); }), HasSubstr("absent.txt"));
  EXPECT_THAT(input_error([&] { read_texts({write("empty.txt", "")}); }), HasSubstr("empty.txt is empty"));
  EXPECT_THROW(read_texts({}), InputError);
}

TEST_F(TextDatasetTest, GzipIsUnpackedWhateverTheFileIsCalled) {
  const std::string text = "the same words, the same words\n";
  const std::string packed = pack(text);
  EXPECT_EQ(read_texts({write("a.txt.gz", packed), write("b.txt", packed + pack("more\n")), write("c.txt", text)}),
            text + text + "more\n" + text);
  EXPECT_EQ(read_texts({write("padded.gz", packed + std::string(512, '\0'))}), text);
  EXPECT_THAT(input_error([&] { read_texts({write("empty.gz", pack(""))}); }), HasSubstr("empty.gz is empty"));
}

TEST_F(TextDatasetTest, DamagedGzipIsNamed) {
  const std::string packed = pack(std::string(5000, 'x') + "and the end of it");
  const auto refused = [&](const std::string& content) {
    return input_error([&] { read_texts({write("a.gz", content)}); });
  };
  for (size_t length = 2; length < packed.size(); ++length) {
    EXPECT_THAT(refused(packed.substr(0, length)), HasSubstr("a.gz ends in the middle of its gzip stream")) << length;
  }
  std::string flipped = packed;
  flipped[flipped.size() - 6] ^= 1;
  EXPECT_THAT(refused(flipped), AllOf(HasSubstr("a.gz is damaged"), HasSubstr("incorrect data check")));
  std::string second = pack("more");
  EXPECT_THAT(refused(packed + second.substr(0, second.size() - 3)), HasSubstr("a.gz ends in the middle"));
  second[0] ^= 1; // was dropped as if it were padding
  EXPECT_THAT(refused(packed + second), HasSubstr(concat("a.gz is damaged: the data from byte ", packed.size(),
                                                         " on is neither gzip nor padding")));
}

TEST_F(TextDatasetTest, OtherPackingsAreNamed) {
  const struct {
    std::string content;
    const char* name;
  } packings[] = {{"BZh91AY&SY.....", "bzip2"},
                  {{"\xFD"
                    "7zXZ\0.....",
                    11},
                   "xz"},
                  {"\x28\xB5\x2F\xFD.....", "zstd"},
                  {"PK\x03\x04.....", "zip"},
                  {"7z\xBC\xAF\x27\x1C...", "7z"}};
  for (const auto& packing : packings) {
    EXPECT_THAT(input_error([&] { read_texts({write("a.txt", packing.content)}); }),
                AllOf(HasSubstr(concat("a.txt is packed with ", packing.name)), HasSubstr("Unpack it first")));
  }
  EXPECT_THAT(input_error([&] { read_texts({write("twice.gz", pack(pack("text")))}); }), HasSubstr("what is in "));
  for (const std::string text : {"BZh is a name", "PK", "7z", "BZh9"}) {
    EXPECT_EQ(read_texts({write("a.txt", text)}), text);
  }
}

TEST_F(TextDatasetTest, TextIsUtf8WithoutItsMark) {
  EXPECT_EQ(read_texts({write("a.txt", "\xEF\xBB\xBFone\n"), write("b.gz", pack("\xEF\xBB\xBFtwo"))}), "one\ntwo");
  std::string wide = "\xFF\xFE";
  for (const char c : std::string("some words")) {
    wide += std::string{c, '\0'};
  }
  for (const std::string& content : {wide, wide.substr(2), pack(wide)}) {
    EXPECT_THAT(input_error([&] { read_texts({write("w.txt", content)}); }),
                AllOf(HasSubstr("w.txt is "), HasSubstr("UTF-16"), HasSubstr("iconv -f UTF-16")));
  }
}

TEST_F(TextDatasetTest, TheValidationPartIsTheEndAndCutsNoCharacter) {
  EXPECT_EQ(validation_start("0123456789", 0.25), 8u);
  EXPECT_EQ(validation_start("0123456789", 0), 10u);
  const std::string text = "ab\xF0\x9F\x98\x80yz"; // an emoji of four bytes
  for (double fraction = 0; fraction < 0.99; fraction += 0.05) {
    const size_t start = validation_start(text, fraction);
    EXPECT_THAT(start, testing::AnyOf(1, 2, 6, 7, 8)) << fraction;
  }
  for (const double fraction : {-0.1, 1.0, 2.0, std::nan("")}) {
    EXPECT_THAT(input_error([&] { validation_start(text, fraction); }), HasSubstr("validation_fraction"));
  }
}

} // namespace
} // namespace trireme::data
