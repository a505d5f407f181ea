#include <trireme/tokenizer/expression.h>

#include <trireme/base/error.h>
#include <trireme/tokenizer/expression_syntax.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme::tokenizer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> found(const std::string& expression, const std::string& text) {
  const Expression compiled(expression, "here");
  std::vector<std::string> parts;
  Matches matches(compiled, text);
  while (const auto match = matches.next()) {
    parts.push_back(text.substr(match->begin, match->end - match->begin));
  }
  return parts;
}

std::string refusal(const std::string& expression) {
  try {
    const Expression compiled(expression, "tokenizer.json:3:4");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Each means something else in PCRE2 as it is.
TEST(ExpressionTest, MeansWhatItMeansInOniguruma) {
  EXPECT_THAT(found(R"(\s+)", "a\u180eb \u3000c\u0085"), ElementsAre(" \u3000", "\u0085"));
  EXPECT_THAT(found(R"([^\s]+)", "a\u180eb c"), ElementsAre("a\u180eb", "c"));
  EXPECT_THAT(found(R"(\w+)", "e\u0301a_1\u00b2!x"), ElementsAre("e\u0301a_1\u00b2", "x"));
  EXPECT_THAT(found(R"(e\b)", "e\u0301 e"), ElementsAre("e"));
  EXPECT_THAT(found(R"(\h+)", "xyz12aG \t"), ElementsAre("12a"));
  EXPECT_THAT(found(R"([\h]+)", "\t12aG"), ElementsAre("12a"));
  EXPECT_THAT(found(R"(\v)", "a\nb\vc"), ElementsAre("\v"));
  EXPECT_THAT(found(R"(^b|a$)", "a\nb"), ElementsAre("a", "b")); // the ends of lines
  EXPECT_THAT(found(R"(a.b)", "a\nb a\rb"), ElementsAre("a\rb"));
  EXPECT_THAT(found(R"((?m:a.b))", "a\nb"), ElementsAre("a\nb"));                 // Ruby's m is PCRE2's s
  EXPECT_THAT(found(R"(\p{Han}+)", "\u6f22\u3001\u30fb"), ElementsAre("\u6f22")); // no extensions of scripts
  EXPECT_THAT(found(R"(\p{Letter}+|\p{^L}+)", "ab12"), ElementsAre("ab", "12"));
  EXPECT_THAT(found(R"(a{,2}b)", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(found(R"({a})", "x{a}"), ElementsAre("{a}"));
  EXPECT_THAT(found(R"([[:punct:]]+)", "a\u00a9$!\u3001b"), ElementsAre("$!\u3001"));
  EXPECT_THAT(found("\\u6f22", "\u6f22"), ElementsAre("\u6f22"));
  EXPECT_THAT(found(R"((?i:'s|'t))", "'S 'T '\u017f"), ElementsAre("'S", "'T", "'\u017f"));
  EXPECT_THAT(found(R"([^\r\n\p{L}\p{N}]?+\p{L}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+(?!\S)|\s+)", "a b--\n  c"),
              ElementsAre("a", " b", "--\n", " ", " c"));
}

TEST(ExpressionTest, EmptyMatchesAreLeftOutBehindAMatch) {
  EXPECT_THAT(found("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(found("", "\u00e9a"), ElementsAre("", "", ""));
  const Expression literal = Expression::literal("ab");
  EXPECT_EQ(literal.find("xab", 0)->begin, 1u);
  EXPECT_FALSE(literal.find("xab", 2));
}

TEST(ExpressionTest, LooksBehindTheStart) {
  const Expression expression("(?<=a)b", "here");
  EXPECT_EQ(expression.find("ab", 1)->begin, 1u);
  EXPECT_FALSE(expression.find("b", 0));
}

TEST(ExpressionTest, RefusesByNameWhatPcre2DoesNotHave) {
  EXPECT_THAT(refusal("[a-z&&[^b]]"),
              AllOf(HasSubstr("tokenizer.json:3:4"), HasSubstr("(&&)"), HasSubstr("lookahead")));
  EXPECT_THAT(refusal("[a[bc]]"), HasSubstr("a class inside of a class"));
  EXPECT_THAT(refusal("(?~abc)"), HasSubstr("absent"));
  EXPECT_THAT(refusal(R"(a{1,2}+)"), HasSubstr("{n,m}+"));
  EXPECT_THAT(refusal("(?x: a )"), HasSubstr("option x"));
  EXPECT_THAT(refusal("a(?i)b"), HasSubstr("do not begin a group"));
  EXPECT_THAT(refusal(R"([\W])"), HasSubstr("\\W inside"));
  EXPECT_THAT(refusal(R"(\p{Klingon})"), HasSubstr("unknown property"));
  EXPECT_THAT(refusal(R"(\pL)"), HasSubstr("without {...}"));
  EXPECT_THAT(refusal(R"(\Q)"), HasSubstr("\\Q"));
  EXPECT_THAT(refusal("(a"), HasSubstr("parenthesis"));
  EXPECT_THAT(refusal("[a"), HasSubstr("without its ]"));
  EXPECT_THAT(refusal("a\\"), HasSubstr("single"));
  EXPECT_THAT(refusal("(?<=a+)b"), HasSubstr("lookbehind"));
}

// 2^40 ways to match: given up, neither hung nor crashed.
TEST(ExpressionTest, GivesUpWhereItWouldNeverEnd) {
  const Expression expression("(a|a)+$", "tokenizer.json:3:4");
  const std::string text = std::string(40, 'a') + "b";
  try {
    expression.find(text, 0);
    FAIL() << "found in finite time?";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tokenizer.json:3:4"), HasSubstr("gave up"), HasSubstr("match limit")));
  }
}

} // namespace
} // namespace trireme::tokenizer
