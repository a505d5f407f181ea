#include <trireme/zero/access_order.h>

#include <gmock/gmock.h>

namespace trireme::zero {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const int kUnits[4] = {};
const void* unit(int i) {
  return &kUnits[i];
}

TEST(AccessOrderTest, TheSecondPassKnowsWhatComesNext) {
  AccessOrder order;
  order.begin(Pass::training);
  for (const int i : {0, 1, 2, 1}) {
    order.note(unit(i));
    EXPECT_THAT(order.upcoming(), IsEmpty());
  }
  order.begin(Pass::training);
  EXPECT_THAT(order.upcoming(), ElementsAre(unit(0), unit(1), unit(2), unit(1)));
  order.note(unit(0));
  EXPECT_THAT(order.upcoming(), ElementsAre(unit(1), unit(2), unit(1)));
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
  EXPECT_THAT(order.upcoming(), IsEmpty());
  order.note(unit(2));
  EXPECT_THAT(order.upcoming(), IsEmpty());
  order.begin(Pass::training);
  EXPECT_THAT(order.upcoming(), ElementsAre(unit(0), unit(3), unit(2)));
}

TEST(AccessOrderTest, EvaluationIsAPassOfItsOwn) {
  AccessOrder order;
  order.begin(Pass::training);
  order.note(unit(0));
  order.note(unit(1));
  order.begin(Pass::evaluation);
  order.note(unit(2));
  order.begin(Pass::training);
  EXPECT_THAT(order.upcoming(), ElementsAre(unit(0), unit(1)));
  order.begin(Pass::evaluation);
  EXPECT_THAT(order.upcoming(), ElementsAre(unit(2)));
}

TEST(AccessOrderTest, ALongerPassRunsOutOfPredictions) {
  AccessOrder order;
  order.begin(Pass::training);
  order.note(unit(0));
  order.begin(Pass::training);
  order.note(unit(0));
  EXPECT_THAT(order.upcoming(), IsEmpty());
  order.note(unit(1));
  EXPECT_THAT(order.upcoming(), IsEmpty());
}

} // namespace
} // namespace trireme::zero
