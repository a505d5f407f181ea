#include <trireme/tokenizer/unicode.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme::tokenizer {
namespace {

TEST(UnicodeTest, InvalidUtf8IsReplacedAsPythonDoes) {
  // bytes.decode(errors="replace") of CPython 3.11.
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"abc\xc3\xa9", "abc\xc3\xa9"},
      {"\x80", r},
      {"a\xff\xfe", "a" + r + r},
      {"\xc3", r},
      {"\xc3\x28", r + "("},
      {"\xc0\xaf", r + r},                 // overlong
      {"\xe0\x80\xaf", r + r + r},         // overlong
      {"\xed\xa0\x80", r + r + r},         // a surrogate
      {"\xf4\x90\x80\x80", r + r + r + r}, // past U+10FFFF
      {"\xe6\xbc", r},                     // cut: one for the part
      {"\xe6\xbc\x41", r + "A"},
      {"\xf0\x9f\x98", r},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", r + "\xf0\x9f\x98\x80"},
      {"\xf0\x9f\x41\xe2\x82", r + "A" + r},
      {std::string(20, 'x') + "\xf8\x88\x80\x80\x80", std::string(20, 'x') + r + r + r + r + r}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(replace_invalid_utf8(bytes), text);
    EXPECT_EQ(valid_utf8_prefix(bytes) == bytes.size(), bytes == text);
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
}

TEST(UnicodeTest, KnowsTheClassesOfTheEdgesOfUnicode) {
  EXPECT_FALSE(is_space(0x1c)); // Python's isspace() says otherwise
  EXPECT_TRUE(is_space(0x85));
  EXPECT_FALSE(is_space(0x200b));
  EXPECT_FALSE(is_space(0x180e));
  EXPECT_TRUE(is_space(0x3000));
  EXPECT_TRUE(is_number(0xbd));
  EXPECT_FALSE(is_number('a'));
  EXPECT_TRUE(is_punctuation('$'));
  EXPECT_FALSE(is_punctuation(0x20ac)); // the sign of the euro is a symbol
  EXPECT_TRUE(is_punctuation(0x3001));
  EXPECT_FALSE(is_control(0x378)); // not assigned
  EXPECT_TRUE(is_control(0xe000));
  EXPECT_TRUE(is_word(0x24b6));
  EXPECT_FALSE(is_word(0xb2));
  EXPECT_TRUE(is_word(0x301));
  EXPECT_TRUE(is_mark(0x903));
  EXPECT_FALSE(is_nonspacing_mark(0x903));
}

TEST(UnicodeTest, LowerCaseAndNormalForms) {
  std::string lower;
  for (const char32_t code : {U'A', U'\u00c9', U'\u0130', U'\u03a3', U'\u1e9e', U'5'}) {
    append_lower(lower, code);
  }
  EXPECT_EQ(lower, "a\u00e9i\u0307\u03c3\u00df5");
  const std::pair<NormalForm, std::string> forms[] = {{NormalForm::nfc, "\u00e9\ufb01"},
                                                      {NormalForm::nfd, "e\u0301\ufb01"},
                                                      {NormalForm::nfkc, "\u00e9fi"},
                                                      {NormalForm::nfkd, "e\u0301fi"}};
  for (const auto& [form, expected] : forms) {
    std::string text = "e\u0301\ufb01";
    normalize(text, form);
    EXPECT_EQ(text, expected);
  }
}

TEST(UnicodeTest, GraphemeClusters) {
  std::vector<std::string> clusters;
  for_each_grapheme("ae\u0301\r\n\U0001f468\u200d\U0001f469\U0001f1e9\U0001f1ea!",
                    [&](std::string_view cluster) { clusters.emplace_back(cluster); });
  EXPECT_EQ(clusters, (std::vector<std::string>{"a", "e\u0301", "\r\n", "\U0001f468\u200d\U0001f469",
                                                "\U0001f1e9\U0001f1ea", "!"}));
}

} // namespace
} // namespace trireme::tokenizer
