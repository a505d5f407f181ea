#include <trireme/data/tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/data/byte_level_bpe_split.h>
#include <trireme/data/byte_level_bpe_unicode.h>
#include <trireme/data/fetch_command.h>

#include "temporary_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <numeric>
#include <random>

namespace trireme::data {
namespace {

std::string utf8(char32_t code) {
  std::string out;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
  }
  if (code >= 0x80) {
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
  return out;
}

std::vector<std::string> hand_picked() {
  return {
      "",
      " ",
      "  ",
      "a",
      " a",
      "  a",
      "a ",
      "a  ",
      "\n",
      " \n",
      "\n a",
      "a\r\n\r\n  b\t\tc",
      std::string("nul\0nul", 7),
      "It's I'm we'll they've you're he'd can't 'S 'LL ''s 's' !'s don't!'t 're",
      "'",
      "''",
      " '",
      "x'",
      "l'l",
      "The quick brown fox, jumped over 12345 lazy dogs... \"really?\" (yes) -- 3.14159e-10",
      "Grüße aus Köln, déjà vu, naïve, señor, Ångström, ﬁne, Ĳssel",
      "Привет, мир! Ελληνικά κείμενα. שלום עולם مرحبا بالعالم ١٢٣",
      "हिन्दी में पाठ ๑๒๓ ไทย ქართული Հայերեն አማርኛ",
      "漢字かな交じり文、カタカナ。全角１２３　全角空白　 混在",
      "한국어 문장입니다. 中文句子，没有空格。",
      "😀😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ a😀b 1😀2",
      "e\u0301 vs \u00e9, Z\u0351\u036b\u0343 a\u0300b",
      "½ ² ³ ¼ Ⅷ ⅷ ① ㊿ ৯ 𝟘𝟙 𐄇 x² H₂O",
      "\u00a0nbsp\u00a0\u00a0x \u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000y \u200b\u200d\ufeff\u180ez",
      "a\u0085b \x1c\x1d\x1e\x1f \x7f \x01\x02 \v\f",
      "𝒜𝓃 𐍈𐌰 𠀀𠀁𪚥 \U000e0001\U000f0000\U0010ffff \ufffd\uffff",
      "tabs\t\tand   runs     of      spaces\n\n\n\n   end   ",
      "<|endoftext|>",
      "a<|endoftext|>b",
      "a <|endoftext|> b<|endoftext|><|endoftext|>",
      "<|endoftext",
      "<|end",
      "<|endof <|endoftext|",
      "x<|end|>",
      "hello  <mask>  world",
      "  <mask>",
      "<mask>  ",
      "a\n\t\u3000<mask>b",
      "<r>  \n\u00a0x  <r>",
      "a  <both>  b",
      "<both><both>  <mask> <r> <r>  <both>",
      "<r>  <mask>  x",
      "foo bar",
      "foobar",
      "foo foo bar barfoo",
      "blob job",
      "été étéé l'été",
      "<MASK> <Mask>",
      "s<unk>t",
  };
}

// Pieces that meet each other in every order are what finds a wrong boundary.
std::vector<std::string> random_cases(int count) {
  const std::vector<std::string> pieces = {" ",
                                           " ",
                                           "  ",
                                           "\n",
                                           "\r\n",
                                           "\t",
                                           "\u00a0",
                                           "\u3000",
                                           "\u2028",
                                           "a",
                                           "the",
                                           "The",
                                           "tion",
                                           "ing",
                                           "Zo\u00eb",
                                           "\u00e9t\u00e9",
                                           "\u0416",
                                           "\u6f22\u5b57",
                                           "\u0301",
                                           "1",
                                           "2024",
                                           "\u00bd",
                                           "\u0663",
                                           "'",
                                           "'s",
                                           "'t",
                                           "'re",
                                           "'ve",
                                           "'m",
                                           "'ll",
                                           "'d",
                                           "'S",
                                           ".",
                                           ",",
                                           "!?",
                                           "--",
                                           "\"",
                                           "_",
                                           "$",
                                           "\U0001f600",
                                           "\U0001f468\u200d\U0001f469",
                                           "\U00020000",
                                           "\U0010ffff",
                                           "\u00ad",
                                           "\u0100",
                                           "\u0120",
                                           "<|endoftext|>",
                                           "<|end",
                                           "<mask>",
                                           "<r>",
                                           "<both>",
                                           "foo",
                                           "foo bar",
                                           "ob",
                                           "<",
                                           "|>",
                                           std::string(1, '\0'),
                                           "\x7f",
                                           "\x1f"};
  std::mt19937 random(20240607);
  std::vector<std::string> cases;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (uint32_t left = 1 + random() % 24; left > 0; --left) {
      text += pieces[random() % pieces.size()];
    }
    cases.push_back(std::move(text));
  }
  return cases;
}

// Every code point where the class changes, every one of the first 0x3000, and some of all others, each
// behind a letter, a number and a space.
std::vector<std::string> code_point_cases() {
  std::vector<std::string> cases(1);
  for (char32_t code = 1; code <= 0x10ffff; ++code) {
    const bool edge =
        char_class(code) != char_class(code - 1) || (code < 0x10ffff && char_class(code) != char_class(code + 1));
    if ((code >= 0xd800 && code <= 0xdfff) || (!edge && code >= 0x3000 && code % 401 != 0)) {
      continue;
    }
    const std::string c = utf8(code);
    cases.back() += "a" + c + "1" + c + " " + c + "?" + c;
    if (cases.back().size() > 4000) {
      cases.emplace_back();
    }
  }
  return cases;
}

std::string corpus() {
  std::string text =
      "It is a truth universally acknowledged, that a single man in possession of a good "
      "fortune, must be in want of a wife. ";
  for (int i = 0; i < 40; ++i) {
    text +=
        "the tion ing foo bar blob <|endof text and\n  then 2024 and 12345 they'll don't it's   Zo\u00eb "
        "\u00e9t\u00e9 \u6f22\u5b57 \U0001f600\U0001f600 ";
    text += concat("word", i % 7, " \u041f\u0440\u0438\u0432\u0435\u0442 --- !!! \n\n\u3000x ", i, '\n');
  }
  return text;
}

std::string test_python() {
  const char* chosen = std::getenv("TRIREME_TEST_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : TRIREME_SOURCE_DIR "/.venv/bin/python";
}

// What PyPI tokenizers says to all cases, for every variant of tokenizer that the script makes.
class TokenizerReferenceTest : public TemporaryFolderTest {
 protected:
  void run(std::vector<std::string> cases) {
    cases_ = std::move(cases);
    write("corpus.txt", corpus());
    write("cases.json", nlohmann::json(cases_).dump());
    const CommandResult result = run_command(
        {test_python(), TRIREME_SOURCE_DIR "/tests/data/tokenizer_reference.py", folder_.string()}, folder_);
    ASSERT_EQ(result.exit_code, 0) << "PyPI tokenizers is needed (requirements-test.txt):\n" << result.err;
    expected_ = nlohmann::json::parse(read_file(folder_ / "expected.json"));
  }

  void expect_same_ids(const std::string& variant) {
    const auto tokenizer = make_tokenizer((folder_ / variant).string());
    EXPECT_EQ(tokenizer->vocab_size(), expected_["vocab_size"][variant].get<int64_t>()) << variant;
    for (size_t i = 0; i < cases_.size(); ++i) {
      ASSERT_EQ(tokenizer->encode(cases_[i]), expected_["ids"][variant][i].get<std::vector<int32_t>>())
          << variant << ": " << nlohmann::json(cases_[i]).dump().substr(0, 400);
    }
  }

  std::vector<std::string> cases_;
  nlohmann::json expected_;
};

TEST_F(TokenizerReferenceTest, GivesTheIdsOfHuggingFaceForEveryVariant) {
  auto cases = hand_picked();
  const auto more = random_cases(400);
  cases.insert(cases.end(), more.begin(), more.end());
  run(cases);
  for (const char* variant : {"plain", "strings", "prefix", "one_word", "ignore_merges", "pair"}) {
    expect_same_ids(variant);
  }
  // ... and the variants do differ, so that none is equal for lack of a case.
  EXPECT_NE(expected_["ids"]["plain"], expected_["ids"]["prefix"]);
  EXPECT_NE(expected_["ids"]["plain"], expected_["ids"]["one_word"]);
  EXPECT_NE(expected_["ids"]["plain"], expected_["ids"]["ignore_merges"]);
  EXPECT_EQ(make_tokenizer((folder_ / "pair/vocab.json").string())->encode("a<|endoftext|>b"),
            make_tokenizer(concat((folder_ / "pair/vocab.json").string(), ',', (folder_ / "pair/merges.txt").string()))
                ->encode("a<|endoftext|>b"));
}

TEST_F(TokenizerReferenceTest, UsesTheUnknownTokenAsHuggingFaceDoes) {
  run({"the cat", "the dog", "dog", "xyz", "the xyz cat", "\u6f22\u5b57 the", "thq", "qthe", "q q qq", "cat<unk>cat",
       "zz\nzz"});
  expect_same_ids("unknown");
  expect_same_ids("unknown_fused");
  EXPECT_NE(expected_["ids"]["unknown"], expected_["ids"]["unknown_fused"]);
}

TEST_F(TokenizerReferenceTest, CutsWordsAsHuggingFaceDoesForAllOfUnicode) {
  auto cases = code_point_cases();
  for (const auto& more : {hand_picked(), random_cases(400)}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  run(cases);
  for (size_t i = 0; i < cases_.size(); ++i) {
    std::vector<size_t> lengths;
    for (size_t at = 0; at < cases_[i].size();) {
      const size_t end = word_end(cases_[i], at);
      ASSERT_GT(end, at);
      lengths.push_back(end - at);
      at = end;
    }
    ASSERT_EQ(lengths, expected_["words"][i].get<std::vector<size_t>>()) << nlohmann::json(cases_[i]).dump();
  }
}

TEST_F(TokenizerReferenceTest, DecodeIsTheInverseOfEncodeForAnyBytes) {
  run({"x"});
  std::mt19937 random(7);
  for (const char* variant : {"plain", "one_word", "ignore_merges", "pair"}) {
    const auto tokenizer = make_tokenizer((folder_ / variant).string());
    for (int round = 0; round < 100; ++round) {
      std::string bytes(random() % 200, '\0');
      for (char& c : bytes) {
        c = static_cast<char>(random());
      }
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << variant;
    }
    const std::string prose = corpus();
    const auto ids = tokenizer->encode(prose);
    EXPECT_LT(ids.size(), prose.size() * 3 / 4) << "merges were not used";
    EXPECT_EQ(tokenizer->decode(ids), prose);
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{0, static_cast<int32_t>(tokenizer->vocab_size())}), InputError);
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), InputError);
  }
}

TEST_F(TokenizerReferenceTest, OneEndlessWordTakesNoQuadraticTime) {
  run({"x"});
  // 2 million bytes that merge in many rounds: with a search of the whole word per merge this would take hours.
  std::string word;
  while (word.size() < 2000000) {
    word += "thetioning";
  }
  const auto tokenizer = make_tokenizer((folder_ / "plain").string());
  const auto ids = tokenizer->encode(word);
  EXPECT_LE(ids.size(), word.size() / 2);
  EXPECT_EQ(tokenizer->decode(ids), word);
}

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

TEST(TokenizerTest, KnowsTheClassesOfTheEdgesOfUnicode) {
  EXPECT_EQ(char_class(0), CharClass::other);
  EXPECT_EQ(char_class(0x1c), CharClass::other); // Python's isspace() says otherwise
  EXPECT_EQ(char_class(0x85), CharClass::space);
  EXPECT_EQ(char_class(0x200b), CharClass::other);
  EXPECT_EQ(char_class(0x1c89), CharClass::letter); // new in Unicode 16
  EXPECT_EQ(char_class(0x323af), CharClass::letter);
  EXPECT_EQ(char_class(0x10ffff), CharClass::other);
  EXPECT_EQ(char_class(0xffffffff), CharClass::other);
}

TEST(TokenizerTest, WhiteSpaceIsFoundBackwardsToo) {
  const std::string text = "a \u3000\u2003\n";
  EXPECT_EQ(space_before(text, text.size()), 1u);
  EXPECT_EQ(space_before(text, 1), 1u);
  EXPECT_EQ(space_before("\u3000", 3), 0u);
  EXPECT_EQ(space_before("\x80\x80\x80\x80\x80 ", 6), 5u);
  EXPECT_EQ(space_after(text, 1), text.size());
  EXPECT_EQ(space_after(text, 0), 0u);
}

} // namespace
} // namespace trireme::data
