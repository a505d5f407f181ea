#include <trireme/tokenizer/tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/tokenizer/unicode.h>

#include "../data/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <numeric>
#include <random>
#include <thread>

namespace trireme::tokenizer {
namespace {

using data::input_error;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(TokenizerTest, BytesAreTheirOwnIds) {
  const auto tokenizer = make_tokenizer("bytes");
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  std::vector<int32_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_EQ(tokenizer->encode(all), ids);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{256}), InputError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), InputError);
}

class SmallTokenizerTest : public data::TemporaryFolderTest {
 protected:
  std::unique_ptr<Tokenizer> make(const json& parts) const {
    return make_tokenizer(write("tokenizer.json", parts.dump()));
  }

  // All bytes, and merges that build words.
  static json byte_level() {
    json vocab;
    std::vector<std::string> chars;
    for (int byte = 0, next = 0x100; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      std::string c;
      append_utf8(c, static_cast<char32_t>(printable ? byte : next++));
      vocab[c] = byte;
    }
    json merges = json::array();
    int32_t id = 256;
    for (const char* merge : {"t h", "th e", "i n", "in g", "th in", "\u0120 the", "\u0120 th", "e th", "ing the"}) {
      merges.push_back(merge);
      std::string token = merge;
      token.erase(token.find(' '), 1);
      vocab[token] = id++;
    }
    return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
            {"decoder", {{"type", "ByteLevel"}}}};
  }
};

// As bytes.decode(errors="replace"): what is UTF-8 comes back, the rest is U+FFFD.
TEST_F(SmallTokenizerTest, DecodeIsTheInverseOfEncodeForAnyBytes) {
  json parts = byte_level();
  std::mt19937 random(7);
  for (const bool use_regex : {true, false}) {
    parts["pre_tokenizer"]["use_regex"] = use_regex;
    const auto tokenizer = make(parts);
    for (int round = 0; round < 200; ++round) {
      std::string bytes(random() % 200, '\0');
      for (char& c : bytes) {
        c = static_cast<char>(random());
      }
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(bytes)), replace_invalid_utf8(bytes));
    }
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{0, static_cast<int32_t>(tokenizer->vocab_size())}), InputError);
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), InputError);
  }
}

TEST_F(SmallTokenizerTest, OneEndlessWordTakesNoQuadraticTime) {
  // 2 million bytes that merge in many rounds: with a search of the word per merge this would take hours.
  const auto tokenizer = make(byte_level());
  std::string word;
  while (word.size() < 2000000) {
    word += "thetheing";
  }
  const auto ids = tokenizer->encode(word);
  EXPECT_LE(ids.size(), word.size() / 2);
  EXPECT_EQ(tokenizer->decode(ids), word);
}

TEST_F(SmallTokenizerTest, ThreadsMayShareATokenizer) {
  const auto tokenizer = make(byte_level());
  const std::string text = "the thing in the ring, nothing else: the the";
  const auto ids = tokenizer->encode(text);
  std::array<int, 4> wrong{};
  {
    std::vector<std::jthread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int round = 0; round < 500; ++round) {
          count += tokenizer->encode(text) != ids;
        }
      });
    }
  }
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// More words than are remembered: forgetting changes no ids.
TEST_F(SmallTokenizerTest, ForgottenWordsAreEncodedAgain) {
  const auto tokenizer = make(byte_level());
  std::string text;
  for (int i = 0; i < 100000; ++i) {
    text += concat(" the", i);
  }
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->encode(text), ids);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

// Sentencepiece's BPE has no words: parts that begin at U+2581 are encoded alone if no token crosses their ends.
TEST_F(SmallTokenizerTest, PartsOfATextWithoutWords) {
  const json normalizer = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const auto with = [&](const json& vocab, const json& merges) {
    return make({{"normalizer", normalizer}, {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}});
  };
  const json vocab = {{"\u2581", 0}, {"a", 1}, {"b", 2}, {"\u2581a", 3}, {"\u2581\u2581", 4}};
  const auto apart = with(vocab, {"\u2581 a", "\u2581 \u2581"});
  EXPECT_THAT(apart->encode("a a   ab"), ElementsAre(1, 3, 4, 3, 2));
  json crossing = vocab;
  crossing["a\u2581"] = 5;
  const auto together = with(crossing, {"a \u2581", "\u2581 a", "\u2581 \u2581"});
  EXPECT_THAT(together->encode("a a   ab"), ElementsAre(5, 5, 0, 3, 2));
}

// As trained by PyPI tokenizers on a text that has "<unk>" itself; it leaves out both.
TEST_F(SmallTokenizerTest, ASpecialTokenIsSoByItsTextUnderEveryId) {
  const auto tokenizer = make({{"added_tokens", {{{"id", 2}, {"content", "<unk>"}, {"special", true}}}},
                               {"model",
                                {{"type", "Unigram"},
                                 {"unk_id", 0},
                                 {"vocab", json::parse(R"([["<unk>", 0.0], ["a", -1.0], ["<unk>", -2.0]])")}}}});
  EXPECT_THAT(tokenizer->encode("axa"), ElementsAre(1, 0, 1));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 0, 2, 1}, /*skip_special_tokens=*/true), "a a");
}

TEST_F(SmallTokenizerTest, WordPieceAndUnigramNameWhatHasNoToken) {
  const json pieces = {{"type", "WordPiece"}, {"vocab", {{"a", 0}, {"##b", 1}}}};
  EXPECT_THAT(make({{"model", pieces}})->encode("abb"), ElementsAre(0, 1, 1));
  EXPECT_THAT(input_error([&] { make({{"model", pieces}})->encode("abc"); }),
              testing::AllOf(HasSubstr("\"abc\""), HasSubstr("[UNK]")));
  const auto vocab = [](const char* text) { return json::parse(text); }; // lists of pairs would become objects
  const json unigram = {{"type", "Unigram"}, {"vocab", vocab(R"([["a", -1.0], ["ab", -1.5], ["b", -2.0]])")}};
  EXPECT_THAT(make({{"model", unigram}})->encode("aab"), ElementsAre(0, 1));
  EXPECT_THAT(input_error([&] { make({{"model", unigram}})->encode("abc"); }),
              testing::AllOf(HasSubstr("\"c\" in \"abc\""), HasSubstr("unk_id")));
  const auto complaint = [&](const json& model) { return input_error([&] { make({{"model", model}}); }); };
  EXPECT_THAT(complaint({{"type", "Unigram"}, {"vocab", vocab(R"([["a", -1.0, 2]])")}}), HasSubstr("found 3 values"));
  EXPECT_THAT(complaint({{"type", "Unigram"}, {"unk_id", 1}, {"vocab", vocab(R"([["a", -1.0]])")}}),
              HasSubstr("unk_id 1"));
  EXPECT_THAT(complaint({{"type", "Unigram"}, {"vocab", json::array()}}), HasSubstr("0 tokens"));
}

} // namespace
} // namespace trireme::tokenizer
