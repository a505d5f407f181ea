// Parts of tokenizers beside what equality_test.cpp compares: those that PyPI tokenizers cannot make, and refusals.
#include <trireme/tokenizer/added_tokens.h>
#include <trireme/tokenizer/decoder.h>
#include <trireme/tokenizer/normalizer.h>
#include <trireme/tokenizer/post_processor.h>
#include <trireme/tokenizer/pre_tokenizer.h>
#include <trireme/tokenizer/split_behavior.h>
#include <trireme/tokenizer/trie.h>
#include <trireme/tokenizer/word_cache.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <map>
#include <random>
#include <string>

namespace trireme::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string base64(const std::string& bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) {
      out += kDigits[bits >> (count - 6) & 63];
    }
  }
  if (count > 0) {
    out += kDigits[bits << (6 - count) & 63];
  }
  return out;
}

// The double array of a map: "A" -> "x", "\xc3\xa9" -> "e", by hand. A unit's offset is in bits 10 and up.
std::string small_map() {
  std::vector<uint32_t> units(1024);
  const auto offset = [](uint32_t value) { return value << 10; };
  units[0] = offset(256);
  units[256 ^ 'A'] = offset(1) | 1 << 8 | 'A';
  units[256 ^ 'A' ^ 1] = 0 | 1u << 31; // the value 0: where "x" begins
  units[256 ^ 0xc3] = offset(512) | 0xc3;
  units[(256 ^ 0xc3 ^ 512) ^ 0xa9] = offset(1) | 1 << 8 | 0xa9;
  units[(256 ^ 0xc3 ^ 512) ^ 0xa9 ^ 1] = 2 | 1u << 31;
  const auto bytes = static_cast<uint32_t>(units.size() * 4);
  std::string map(4 + bytes, '\0');
  std::memcpy(map.data(), &bytes, 4);
  std::memcpy(map.data() + 4, units.data(), bytes);
  return map + std::string("x\0e\0", 4);
}

std::string normalized(const std::string& parts, std::string text) {
  for (const auto& step : read_normalizers(JsonNode::parse(parts, "normalizer"))) {
    step->apply(text);
  }
  return text;
}

// Every cut that threads may make, through what acts on neighbours: marks, line ends, clusters, spaces.
TEST(NormalizerTest, ThreadsChangeTextAsOneDoes) {
  const std::vector<std::string> kinds = {
      R"({"type": "NFC"})",
      R"({"type": "NFKD"})",
      R"({"type": "Lowercase"})",
      R"({"type": "StripAccents"})",
      R"({"type": "Nmt"})",
      R"({"type": "ByteLevel"})",
      R"({"type": "Strip", "strip_left": true, "strip_right": true})",
      R"({"type": "Prepend", "prepend": "_"})",
      R"({"type": "Replace", "pattern": {"Regex": " {2,}|Aa"}, "content": "-"})",
      concat(R"({"type": "Precompiled", "precompiled_charsmap": ")", base64(small_map()), "\"}"),
      R"({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true})",
  };
  const std::vector<std::string> chars = {"a",      "A",      " ",      " ",      "~",      "\r",     "\n",   "\u00e9",
                                          "\u0301", "\u0307", "\u4e2d", "\u200d", "\u200b", "\ufffd", "\x01", "\x7f"};
  std::mt19937 random(5);
  for (const std::string& kind : kinds) {
    const Normalizers one = read_normalizers(JsonNode::parse(kind, "normalizer"));
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (int i = 0; i < 10; ++i) {
        text += chars[random() % chars.size()];
      }
      std::string expected = text;
      std::string actual = text;
      const bool kept = one.front()->apply(expected);
      EXPECT_EQ(apply_with_threads(*one.front(), actual, static_cast<int>(2 + random() % text.size()), 1), kept);
      ASSERT_EQ(actual, expected) << kind << ": " << nlohmann::json(text).dump();
    }
  }
}

TEST(NormalizerTest, ThreadsReportTheFirstError) {
  struct Refusing final : Normalizer {
    bool apply(std::string& text) const override { throw InputError("test", text); }
    bool is_local() const override { return true; }
  };
  std::string text = "abcd";
  try {
    apply_with_threads(Refusing(), text, 2, 1);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ab"));
  }
}

TEST(PrecompiledTest, ReplacesWhatTheMapHas) {
  const std::string part = concat(R"({"type": "Precompiled", "precompiled_charsmap": ")", base64(small_map()), "\"}");
  EXPECT_EQ(normalized(part, "ABA \u00e9\u00c9e"), "xBx e\u00c9e");
  // A grapheme cluster is replaced by its shortest beginning, and the rest of it is lost: tokenizers does so.
  EXPECT_EQ(normalized(part, "A\u0301b"), "xb");
  const std::string empty = R"({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="})";
  EXPECT_EQ(normalized(empty, "Ab"), "Ab");
}

TEST(PrecompiledTest, RefusesDamage) {
  const auto error = [](const std::string& map) -> std::string {
    try {
      normalized(concat(R"({"type": "Precompiled", "precompiled_charsmap": ")", map, "\"}"), "A\u00e9");
    } catch (const InputError& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_THAT(error("?"), HasSubstr("not base64"));
  EXPECT_THAT(error(""), HasSubstr("is cut"));
  EXPECT_THAT(error(base64(small_map().substr(0, 2000))), HasSubstr("is cut"));
  EXPECT_EQ(error(base64(small_map().substr(0, 4 + 4096))), "") << "values that point nowhere replace nothing";
  std::string wrong = small_map();
  wrong[4 + 4096] = '\xff';
  EXPECT_THAT(error(base64(wrong)), HasSubstr("not UTF-8"));
}

TEST(AddedTokensTest, TheLongestAtTheLeftmostPlace) {
  const AddedTokens tokens({{.content = "ab", .id = 1}, {.content = "abc", .id = 2}, {.content = "bcd", .id = 3}, {}});
  std::vector<int32_t> ids;
  std::string rest;
  tokens.split("xabcdab", [&](TextPart part) { part.id ? ids.push_back(*part.id) : void(rest += part.text); });
  EXPECT_THAT(ids, ElementsAre(2, 1));
  EXPECT_EQ(rest, "xd");
}

TEST(WordCacheTest, RemembersAndForgets) {
  WordCache cache;
  std::mt19937 random(3);
  std::map<std::string, std::vector<int32_t>> all;
  for (int i = 0; i < 200000; ++i) {
    std::string word(1 + random() % 20, '\0');
    for (char& c : word) {
      c = static_cast<char>(random() % 5);
    }
    const auto hit = cache.find(word);
    auto& ids = all[word];
    if (hit.found) {
      ASSERT_EQ(std::vector<int32_t>(hit.ids.begin(), hit.ids.end()), ids);
    } else {
      ids.assign(1 + random() % 4, i);
      cache.insert(word, ids);
    }
  }
}

TEST(TrieTest, EqualsAMap) {
  Trie trie;
  std::map<std::string, int32_t> all;
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    std::string key(1 + random() % 6, '\0');
    for (char& c : key) {
      c = static_cast<char>(random() % 7);
    }
    trie.add(key, i);
    all[key] = i;
  }
  for (const auto& [key, value] : all) {
    ASSERT_EQ(trie.value(trie.walk(Trie::kRoot, key)), value);
  }
  EXPECT_EQ(trie.walk(Trie::kRoot, "zz"), Trie::kNowhere);
}

TEST(PostProcessorTest, SequencesAddUp) {
  const PostProcessor made = read_post_processor(JsonNode::parse(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "trim_offsets": true},
      {"type": "TemplateProcessing", "pair": [],
       "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "E", "type_id": 0}}],
       "special_tokens": {"B": {"id": "B", "ids": [7, 8], "tokens": ["x", "y"]}, "E": {"id": "E", "ids": [], "tokens": []}}}]})",
                                                                 "file"));
  EXPECT_THAT(made.before, ElementsAre(7, 8));
  EXPECT_THAT(made.after, ElementsAre());
}

} // namespace
} // namespace trireme::tokenizer
