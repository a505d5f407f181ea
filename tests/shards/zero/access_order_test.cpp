#include <trireme/shards/zero/access_order.h>

#include <gmock/gmock.h>

#include <vector>

namespace trireme::zero {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const int kUnits[4] = {};
const void* unit(int i) {
  return &kUnits[i];
}

std::vector<const void*> upcoming(const AccessOrder& order) {
  std::vector<const void*> units;
  order.for_each_upcoming([&](const void* next) {
    units.push_back(next);
    return true;
  });
  return units;
}

TEST(AccessOrderTest, TheSecondPassKnowsWhatComesNext) {
  AccessOrder order;
  order.begin(Pass::training);
  for (const int i : {0, 1, 2, 1}) {
    order.note(unit(i));
    EXPECT_THAT(upcoming(order), IsEmpty());
  }
  order.begin(Pass::training);
  EXPECT_THAT(upcoming(order), ElementsAre(unit(0), unit(1), unit(2), unit(1)));
  order.note(unit(0));
  EXPECT_THAT(upcoming(order), ElementsAre(unit(1), unit(2), unit(1)));
}

TEST(AccessOrderTest, AfterADifferenceNothingIsToldUntilThePassIsOver) {
  AccessOrder order;
  order.begin(Pass::training);
  for (const int i : {0, 1, 2}) {
    order.note(unit(i));
  }
  order.begin(Pass::training);
  order.note(unit(0));
  order.note(unit(3));
  EXPECT_THAT(upcoming(order), IsEmpty());
  order.note(unit(2));
  EXPECT_THAT(upcoming(order), IsEmpty());
  order.begin(Pass::training);
  EXPECT_THAT(upcoming(order), ElementsAre(unit(0), unit(3), unit(2)));
}

TEST(AccessOrderTest, EvaluationIsAPassOfItsOwn) {
  AccessOrder order;
  order.begin(Pass::training);
  order.note(unit(0));
  order.note(unit(1));
  order.begin(Pass::evaluation);
  order.note(unit(2));
  order.begin(Pass::training);
  EXPECT_THAT(upcoming(order), ElementsAre(unit(0), unit(1)));
  order.begin(Pass::evaluation);
  EXPECT_THAT(upcoming(order), ElementsAre(unit(2)));
}

TEST(AccessOrderTest, ALongerPassRunsOutOfPredictions) {
  AccessOrder order;
  order.begin(Pass::training);
  order.note(unit(0));
  order.begin(Pass::training);
  order.note(unit(0));
  EXPECT_THAT(upcoming(order), IsEmpty());
  order.note(unit(1));
  EXPECT_THAT(upcoming(order), IsEmpty());
}

// Two micro-batches of one stage: forward 5, backward 6, and a stretch 7 that uses nothing.
TEST(AccessOrderTest, AStretchThatHasRunOnceIsKnownWhereverItComesAgain) {
  AccessOrder order;
  order.begin({5, 6, 7, 5, 6, 7});
  const auto run = [&](const std::vector<int>& units) {
    order.next_stretch();
    for (const int i : units) {
      order.note(unit(i));
    }
  };
  run({0, 1});
  EXPECT_THAT(upcoming(order), IsEmpty()) << "nobody knows the first backward";
  run({1, 0});
  run({});
  EXPECT_THAT(upcoming(order), IsEmpty()) << "nor that this one uses nothing, until it is over";
  run({0});
  EXPECT_THAT(upcoming(order), ElementsAre(unit(1), unit(1), unit(0)));
  run({});
  EXPECT_THAT(upcoming(order), ElementsAre(unit(1), unit(0)));
  order.note(unit(1));
  order.note(unit(0));
  run({});
  EXPECT_THAT(upcoming(order), IsEmpty());
  order.begin({7, 6, 5, 6});
  EXPECT_THAT(upcoming(order), ElementsAre(unit(1), unit(0), unit(0), unit(1), unit(0))) << "before the first of them";
  order.next_stretch();
  order.next_stretch();
  order.note(unit(2));
  EXPECT_THAT(upcoming(order), IsEmpty()) << "something else came";
  order.next_stretch();
  EXPECT_EQ(upcoming(order).front(), unit(0)) << "the next stretch is known";
}

} // namespace
} // namespace trireme::zero
