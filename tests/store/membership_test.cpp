// The rules of a meeting without a store: who may propose a round, when it is complete, and who is in it.
#include <trireme/store/membership.h>

#include <gmock/gmock.h>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr Limits kLimits{.min_ranks = 1, .max_ranks = 3, .start_patience = seconds(30), .late_patience = seconds(60)};

/// Round 4 of the processes 1, 2 and 3, of which 3 was new; 9 is a spare.
Decision round_4() {
  return {.number = 4, .members = {2, 1, 3}, .places = {1, 0, 2}, .fresh = {3}, .spares = {9}};
}

TEST(MembershipTest, ADecisionSurvivesTheStore) {
  Decision decision = round_4();
  decision.changes = 17;
  const Decision read = Decision::parse(decision.text());
  EXPECT_EQ(read.number, 4);
  EXPECT_THAT(read.members, ElementsAre(2, 1, 3));
  EXPECT_THAT(read.places, ElementsAre(1, 0, 2));
  EXPECT_THAT(read.fresh, ElementsAre(3));
  EXPECT_THAT(read.spares, ElementsAre(9));
  EXPECT_EQ(read.changes, 17);
  EXPECT_FALSE(read.finished);
  decision.finished = true;
  EXPECT_TRUE(Decision::parse(decision.text()).finished);
}

TEST(MembershipTest, OnlyMembersThatHaveTheStateProposeWhileOneOfThemLives) {
  View view{.living = {{1, {4}}, {2, {4}}, {3, {5}}, {9, {5}}, {12, {5}}}};
  EXPECT_TRUE(may_propose(round_4(), view, 1));
  EXPECT_TRUE(may_propose(round_4(), view, 2));
  EXPECT_FALSE(may_propose(round_4(), view, 3)) << "new, and does not say that it has the state";
  EXPECT_FALSE(may_propose(round_4(), view, 9)) << "a spare";
  EXPECT_FALSE(may_propose(round_4(), view, 12)) << "it has just come";
  view.living[3].state = 4;
  EXPECT_TRUE(may_propose(round_4(), view, 3));
  view.living[3].state = 3; // an older one
  view.living.erase(1);
  view.living.erase(2);
  EXPECT_TRUE(may_propose(round_4(), view, 3)) << "the state is lost";
  EXPECT_FALSE(may_propose(round_4(), view, 9)) << "a member lives, and may not have said yet that it has the state";
  view.living.erase(3);
  EXPECT_TRUE(may_propose(round_4(), view, 9));
  EXPECT_TRUE(may_propose(round_4(), view, 12));
  EXPECT_TRUE(may_propose(Decision(), view, 12)) << "there was no round";
}

TEST(MembershipTest, ARoundWaitsForTheMembersOfTheLastOneAndForNobodyElse) {
  View view{.living = {{1, {5}}, {2, {4}}, {3, {5}}, {12, {0}}, {13, {3}}}};
  EXPECT_FALSE(complete(round_4(), view, seconds(59), kLimits));
  EXPECT_TRUE(complete(round_4(), view, seconds(60), kLimits)) << "2 is late";
  view.living[2].come = 5;
  EXPECT_TRUE(complete(round_4(), view, seconds(0), kLimits)) << "12 has not come yet, 13 is late since long ago";
  Limits more = kLimits;
  more.min_ranks = more.max_ranks = 4;
  EXPECT_FALSE(complete(round_4(), view, seconds(100), more));
}

TEST(MembershipTest, ASpareIsGivenAMomentToHearOfTheLastRound) {
  View view{.living = {{1, {5}}, {2, {5}}, {9, {4}}}};
  EXPECT_FALSE(complete(round_4(), view, milliseconds(0), kLimits));
  EXPECT_TRUE(complete(round_4(), view, seconds(1), kLimits)) << "it is stopped";
  view.living[3] = {5};
  EXPECT_TRUE(complete(round_4(), view, milliseconds(0), kLimits)) << "there is no room for it";
}

// It was lost, and knows no round: what those say who train is all that there is.
TEST(MembershipTest, InAnEmptyStoreOnlyThoseWhoTrainProposeWhileOneOfThemLives) {
  View view{.living = {{1, {1}}, {2, {0, 0}}, {3, {0, 0}}}};
  EXPECT_FALSE(may_propose(Decision(), view, 1)) << "it is new";
  EXPECT_TRUE(may_propose(Decision(), view, 2));
  view.living[2].come = 1;
  EXPECT_FALSE(complete(Decision(), view, seconds(59), kLimits)) << "3 has not come";
  EXPECT_TRUE(complete(Decision(), view, seconds(60), kLimits)) << "3 is late";
  const Decision without = next_decision(Decision(), view, {{1, {1, 0}}, {2, {1, 5}}}, 0);
  EXPECT_THAT(without.members, ElementsAre(2, 1)) << "it has the state";
  EXPECT_THAT(without.fresh, ElementsAre(1));
  view.living[3].come = 1;
  EXPECT_TRUE(complete(Decision(), view, seconds(0), kLimits)) << "as many as there may be";
  view.living.erase(1);
  EXPECT_FALSE(complete(Decision(), view, seconds(29), kLimits))
      << "another one may train, and not have found the store";
  EXPECT_TRUE(complete(Decision(), view, seconds(30), kLimits));
  view.living.erase(2);
  view.living.erase(3);
  view.living[1].come = 1;
  EXPECT_TRUE(may_propose(Decision(), view, 1)) << "nobody trains any more";
}

TEST(MembershipTest, WhenAllMembersAreGoneThoseWhoWaitBeginAsAtFirst) {
  const View view{.living = {{9, {5}}, {12, {5}}}};
  EXPECT_FALSE(complete(round_4(), view, seconds(29), kLimits)) << "a third one may come";
  EXPECT_TRUE(complete(round_4(), view, seconds(30), kLimits));
  Limits two = kLimits;
  two.max_ranks = 2;
  EXPECT_FALSE(complete(round_4(), view, seconds(1), two)) << "a member whose connection broke may come back";
  EXPECT_TRUE(complete(round_4(), view, seconds(2), two));
  two.max_ranks = 0;
  EXPECT_TRUE(complete(round_4(), view, seconds(2), two)) << "any number";
}

TEST(MembershipTest, MembersRankBeforeNewProcessesAndThoseWithTheStateFirst) {
  const View view{.changes = 21, .living = {{1, {5}}, {2, {5}}, {3, {5}}, {9, {5}}, {12, {5}}}};
  const std::map<int64_t, Order> orders = {{1, {1, 0}}, {2, {1, 1}}, {3, {4, 2}}, {9, {4, 7}}, {12, {2, 0}}};
  const Decision all = next_decision(round_4(), view, orders, 0);
  EXPECT_EQ(all.number, 5);
  EXPECT_EQ(all.changes, 21);
  EXPECT_THAT(all.members, ElementsAre(2, 1, 3, 12, 9));
  EXPECT_THAT(all.places, ElementsAre(1, 0, 2, 0, 7));
  EXPECT_THAT(all.fresh, ElementsAre(3, 9, 12));
  EXPECT_THAT(next_decision(round_4(), view, orders, 4).spares, ElementsAre(9));
  EXPECT_THAT(next_decision(round_4(), view, orders, 3).spares, ElementsAre(9, 12)) << "no spare pushes out a member";
  // 3 has been given the state by 1 and 2, and 1 has not come.
  View late{.living = {{1, {4}}, {2, {5}}, {3, {5, 4}}, {9, {5}}}};
  const Decision without = next_decision(round_4(), late, {{2, {1, 1}}, {3, {4, 2}}, {9, {4, 7}}}, 2);
  EXPECT_THAT(without.members, ElementsAre(2, 3));
  EXPECT_THAT(without.fresh, IsEmpty());
}

TEST(MembershipTest, ANewMemberWithTheStateRanksBeforeOneWithout) {
  const Decision last{.number = 2, .members = {1, 2, 3}, .places = {0, 1, 2}, .fresh = {2, 3}};
  const View view{.living = {{2, {3}}, {3, {3, 2}}}};
  EXPECT_FALSE(may_propose(last, view, 2));
  EXPECT_THAT(next_decision(last, view, {{2, {2, 1}}, {3, {2, 2}}}, 0).members, ElementsAre(3, 2));
}

TEST(MembershipTest, AtABeginningAllAreEqual) {
  const View view{.living = {{4, {1}}, {5, {1}}}};
  const Decision first = next_decision(Decision(), view, {{4, {1, 3}}, {5, {1, 2}}}, 0);
  EXPECT_EQ(first.number, 1);
  EXPECT_THAT(first.members, ElementsAre(5, 4));
  EXPECT_THAT(first.fresh, IsEmpty());
}

} // namespace
} // namespace trireme::store
