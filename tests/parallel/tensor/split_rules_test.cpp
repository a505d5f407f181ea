#include <trireme/base/error.h>
#include <trireme/parallel/tensor/split_mark.h>

#include <gmock/gmock.h>

namespace trireme::tensor {
namespace {

using Kind = SplitRule::Kind;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(PartInGrains, PartsCoverTheWholeInOrderInMultiplesOfTheGrain) {
  for (const int64_t whole : {4, 7, 12, 37, 64}) {
    for (const int64_t grain : {1, 2, 6}) {
      for (const int ranks : {1, 2, 3, 4}) {
        int64_t next = 0;
        for (int r = 0; r < ranks; ++r) {
          const RankRange part = part_in_grains(whole, grain, r, ranks);
          EXPECT_EQ(part.begin, next);
          EXPECT_LE(part.size(), part_in_grains(whole, grain, 0, ranks).size());
          EXPECT_TRUE(part.size() % grain == 0 || part.end == whole);
          next = part.end;
        }
        EXPECT_EQ(next, whole);
      }
    }
  }
  EXPECT_EQ(part_in_grains(24, 6, 0, 3).end, 12);
  EXPECT_EQ(part_in_grains(24, 6, 2, 3).begin, 18);
}

TEST(RuleMatches, TheFirstRuleThatMatchesFromTheBeginningCounts) {
  RuleMatches matches({{Kind::skip, "h\\.1"}, {Kind::column, "h\\.\\d\\.fc"}, {Kind::row, ".*\\.out\\.weight$"}});
  EXPECT_EQ(matches.first({"h.0.fc.weight", "h.0.fc"}), 1);
  EXPECT_EQ(matches.first({"h.1.fc.weight", "h.1.fc"}), 0);
  EXPECT_EQ(matches.first({"h.0.out.weight", "h.0.out"}), 2);
  EXPECT_EQ(matches.first({"x.h.0.fc.weight", "x.h.0.fc"}), -1);
  EXPECT_NO_THROW(matches.check_all_used({"h.0.fc"}));
}

TEST(RuleMatches, NamesTheNearestModuleForARuleThatMatchesNothing) {
  const auto check = [](const char* pattern, const std::vector<std::string>& modules) {
    RuleMatches matches({{Kind::column, pattern}});
    for (const std::string& module : modules) {
      matches.first({module + ".weight", module});
    }
    matches.check_all_used(modules);
  };
  EXPECT_THAT(
      [&] { check(".*\\.querry$", {"h.0.query", "h.0.key"}); },
      ThrowsMessage<InputError>(AllOf(HasSubstr("no parameter of the model matches the pattern \".*\\.querry$\""),
                                      HasSubstr("The nearest module is \"h.0.query\""))));
  EXPECT_THAT([&] { check("q_proj", {"h.0.query", "h.0.key"}); },
              ThrowsMessage<InputError>(HasSubstr("Modules with a weight: h.0.query, h.0.key.")));
}

TEST(RuleMatches, NamesTheRuleThatTookAll) {
  RuleMatches matches({{Kind::column, "h\\..*"}, {Kind::row, "h\\.0\\.out"}});
  matches.first({"h.0.out.weight", "h.0.out"});
  EXPECT_THAT([&] { matches.check_all_used({"h.0.out"}); },
              ThrowsMessage<InputError>(
                  AllOf(HasSubstr("the pattern \"h\\.0\\.out\" has no effect"), HasSubstr("such as \"h\\..*\""))));
}

TEST(RuleMatches, RefusesWhatIsNoExpression) {
  EXPECT_THAT([] { RuleMatches({{Kind::column, "h.(0"}}); },
              ThrowsMessage<InputError>(HasSubstr("is not a regular expression")));
  EXPECT_THAT([] { RuleMatches({{Kind::column, std::string(2000, '(')}}); },
              ThrowsMessage<InputError>(HasSubstr("2000 characters")));
}

} // namespace
} // namespace trireme::tensor
