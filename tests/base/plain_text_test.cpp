#include <trireme/base/plain_text.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string text_of(const std::string& content) {
  return plain_text("data", "a.txt", content);
}

std::string complaint(const std::string& content) {
  try {
    text_of(content);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// Each character as `bytes` bytes, the low one at `low`.
std::string widened(const std::u32string& text, size_t bytes, bool little_endian) {
  std::string wide;
  for (const char32_t c : text) {
    for (size_t i = 0; i < bytes; ++i) {
      const size_t shift = 8 * (little_endian ? i : bytes - 1 - i);
      wide += static_cast<char>(c >> shift & 0xFF);
    }
  }
  return wide;
}

TEST(PlainTextTest, TakesOffUtf8sMarkAndNothingElse) {
  EXPECT_EQ(text_of("\xEF\xBB\xBFone\n"), "one\n");
  EXPECT_EQ(text_of("\xEF\xBB\xBF"), "");
  EXPECT_EQ(text_of("\xEF\xBB\xBF\xEF\xBB\xBFone"), "\xEF\xBB\xBFone") << "one mark";
  for (const std::string& text : {std::string(), std::string("one\xEF\xBB\xBF"), std::string("\xEF\xBB"),
                                  std::string("Fran\xE7"
                                              "ais, Latin-1"),
                                  std::string("a\xFF\xFE")}) {
    EXPECT_EQ(text_of(text), text);
  }
}

TEST(PlainTextTest, OtherEncodingsAreRefusedByTheirMark) {
  for (const bool little : {true, false}) {
    const std::string utf16 = complaint(widened(U"\xFEFFh\x4E2D", 2, little));
    EXPECT_THAT(utf16, AllOf(HasSubstr("[data] a.txt is UTF-16, as its byte order mark says"),
                             HasSubstr("iconv -f UTF-16 -t UTF-8 a.txt > NEW")));
    EXPECT_THAT(complaint(widened(U"\xFEFFhello", 4, little)),
                AllOf(HasSubstr("a.txt is UTF-32"), HasSubstr("iconv -f UTF-32 -t UTF-8")));
  }
}

// The command can be copied.
TEST(PlainTextTest, APathIsOneWordOfTheCommand) {
  const auto said = [](const std::string& path) {
    try {
      plain_text("data", path, "\xFF\xFEh");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(said("my data/it's.txt"), HasSubstr("-t UTF-8 'my data/it'\\''s.txt' > NEW   and use NEW"));
  EXPECT_THAT(said("a-b_1/c.txt"), HasSubstr("-t UTF-8 a-b_1/c.txt > NEW   and use NEW"));
}

TEST(PlainTextTest, OtherEncodingsAreGuessedFromNulBytes) {
  const std::u32string english = U"It was the best of times, it was the worst of times.\n";
  const std::u32string russian =
      U"\x0412\x0441\x0435 \x0441\x0447\x0430\x0441\x0442\x043B\x0438\x0432\x044B\x0435 \x0441\x0435\x043C\x044C\x0438 "
      U"\x043F\x043E\x0445\x043E\x0436\x0438\n";
  for (const std::u32string& line : {english, russian}) {
    std::u32string text;
    for (int i = 0; i < 20; ++i) {
      text += line;
    }
    EXPECT_THAT(complaint(widened(text, 2, true)), AllOf(HasSubstr("a.txt is probably UTF-16LE and must be UTF-8"),
                                                         HasSubstr("iconv -f UTF-16LE -t UTF-8 a.txt")));
    EXPECT_THAT(complaint(widened(text, 2, false)), HasSubstr("UTF-16BE"));
  }
  EXPECT_THAT(complaint(widened(english, 4, true)), HasSubstr("UTF-32LE"));
  EXPECT_THAT(complaint(widened(english, 4, false)), HasSubstr("UTF-32BE"));
  EXPECT_THAT(complaint(widened(U"hi", 2, true)), HasSubstr("UTF-16LE")) << "also a short one";
}

TEST(PlainTextTest, ManyNulBytesAreNoText) {
  std::mt19937 random(1);
  std::string binary(20000, 'x');
  for (char& byte : binary) {
    byte = random() % 10 == 0 ? '\0' : 'x';
  }
  EXPECT_THAT(complaint(binary), AllOf(HasSubstr("a.txt is not text"), HasSubstr("of its 20000 bytes are NUL"),
                                       HasSubstr("iconv -f UTF-16LE"), HasSubstr("tr -d")));
  EXPECT_THAT(complaint(std::string(100, '\0')), HasSubstr("100 of its 100 bytes are NUL"));
}

TEST(PlainTextTest, FewNulBytesStay) {
  std::string names;
  for (int i = 0; i < 200; ++i) { // as find -print0 writes them, of some length
    names += std::string(150, 'n') + '\0';
  }
  EXPECT_EQ(complaint(names), "");
  EXPECT_EQ(complaint(std::string("a\0b", 3)), "");
  EXPECT_EQ(complaint(std::string("one line\0two\0three", 18)), "");
}

} // namespace
} // namespace trireme
