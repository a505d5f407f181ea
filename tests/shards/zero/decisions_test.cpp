// What ZeRO decides from numbers alone: the coordinator, the model's units and the estimate ask the same functions.
#include <trireme/shards/zero/gather_rule.h>
#include <trireme/shards/zero/persistence.h>
#include <trireme/shards/zero/sharding.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace trireme::zero {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Unit = std::vector<int64_t>;

// The parts that are whole while `in_use` is used and `upcoming` are known to come.
std::vector<int64_t> whole(const GatherRule& rule, const Unit& in_use, const std::vector<int64_t>& live,
                           const std::vector<Unit>& upcoming) {
  PartSet there(rule.sizes.size());
  for (const int64_t part : live) {
    there.insert(part);
  }
  return rule
      .whole_parts(in_use, there,
                   [&](const auto& look) {
                     for (const Unit& unit : upcoming) {
                       if (!look(unit)) {
                         return;
                       }
                     }
                   })
      .parts();
}

TEST(GatherRuleTest, GathersTheNextUnitAhead) {
  const GatherRule rule{.sizes = {10, 10, 10, 10}};
  EXPECT_THAT(whole(rule, {0}, {}, {{1}, {2}}), ElementsAre(0, 1));
  EXPECT_THAT(whole(rule, {0}, {}, {{0}, {0}, {3}}), ElementsAre(0, 3)) << "what is in use is not the next one";
  EXPECT_THAT(whole(rule, {0}, {}, {}), ElementsAre(0)) << "in the first pass nothing is known";
}

TEST(GatherRuleTest, GathersAheadUpToItsElements) {
  const std::vector<Unit> upcoming = {{1}, {0}, {2}, {3}};
  EXPECT_THAT(whole({.sizes = {10, 10, 10, 10}, .ahead = 25}, {0}, {}, upcoming), ElementsAre(0, 1, 2));
  EXPECT_THAT(whole({.sizes = {10, 10, 10, 10}, .ahead = 0}, {0}, {}, upcoming), ElementsAre(0));
  EXPECT_THAT(whole({.sizes = {10, 30, 10, 10}, .ahead = 25}, {0}, {}, upcoming), ElementsAre(0))
      << "none is passed over for a smaller one";
}

TEST(GatherRuleTest, KeepsWhatComesSoonest) {
  GatherRule rule{.sizes = {10, 10, 10, 10, 10}, .ahead = 0};
  const std::vector<Unit> upcoming = {{4}, {3}, {2}, {1}};
  EXPECT_THAT(whole(rule, {0}, {1, 2, 3}, upcoming), ElementsAre(0)) << "keep is 0";
  rule.keep = 30;
  EXPECT_THAT(whole(rule, {0}, {1, 2, 3}, upcoming), ElementsAre(0, 3, 2));
  EXPECT_THAT(whole(rule, {0}, {1}, {}), ElementsAre(0)) << "what is not known to come again goes";
}

TEST(GatherRuleTest, KeepsAndGathersWholeUnits) {
  GatherRule rule{.sizes = {10, 10, 10, 10, 10}, .ahead = 15, .keep = 35};
  EXPECT_THAT(whole(rule, {0}, {}, {{1, 2}}), ElementsAre(0)) << "both parts are too many";
  EXPECT_THAT(whole(rule, {0}, {1, 2, 3}, {{1, 2}, {3}}), ElementsAre(0, 1, 2));
  EXPECT_THAT(whole(rule, {0, 1}, {0, 1}, {{1, 2}}), ElementsAre(0, 1, 2)) << "of a tile's layer the rest is gathered";
}

TEST(PersistenceTest, TheSmallestStayWhole) {
  ZeroOptions options{.param_persistence_threshold = 100};
  EXPECT_THAT(are_persistent({100, 99, 5, 1000}, options), ElementsAre(false, true, true, false));
  options.model_persistence_threshold = 103;
  EXPECT_THAT(are_persistent({99, 5, 5, 40}, options), ElementsAre(false, true, true, true));
  options.model_persistence_threshold = 9;
  EXPECT_THAT(are_persistent({5, 5, 4}, options), ElementsAre(true, false, true)) << "of equal ones the first";
  EXPECT_THAT(are_persistent({}, options), IsEmpty());
}

TEST(ShardingTest, FollowsTheStageAndWhatIsElsewhere) {
  const auto of = [](int stage, int64_t ranks, bool parameters = false, bool gradients = false) {
    const Sharding sharding = sharding_of(stage, ranks, parameters, gradients);
    return std::vector<bool>{sharding.states, sharding.gradients, sharding.parameters};
  };
  EXPECT_THAT(of(0, 4), ElementsAre(false, false, false));
  EXPECT_THAT(of(1, 4), ElementsAre(true, false, false));
  EXPECT_THAT(of(2, 4), ElementsAre(true, true, false));
  EXPECT_THAT(of(3, 4), ElementsAre(true, true, true));
  EXPECT_THAT(of(3, 1), ElementsAre(false, false, false)) << "a rank alone has all";
  EXPECT_THAT(of(3, 1, true), ElementsAre(true, true, true)) << "its parameters are elsewhere between uses";
  EXPECT_THAT(of(2, 1, false, true), ElementsAre(false, true, false)) << "its gradients go to the host";
  EXPECT_THAT(of(1, 1, true, true), ElementsAre(false, false, false));
}

} // namespace
} // namespace trireme::zero
