#include <trireme/comm/nccl/lanes.h>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

TEST(LanesTest, NoTwoMessagesOfARankShareALane) {
  for (int size = 2; size <= 17; ++size) {
    for (const bool ring : {false, true}) {
      for (int rank = 0; rank < size; ++rank) {
        std::set<Lane> used = {Lane::collectives};
        for (const auto& [from, to] : neighbours(size, ring)) {
          if (from == rank || to == rank) {
            EXPECT_TRUE(used.insert(lane_of(from, to, size)).second)
                << from << " to " << to << " of " << size << (ring ? ", ring" : "");
          }
        }
      }
    }
  }
}

TEST(LanesTest, TheTwoDirectionsOfAnyPairAreApart) {
  for (int size = 2; size <= 9; ++size) {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from != to) {
          EXPECT_NE(lane_of(from, to, size), lane_of(to, from, size)) << from << ", " << to << " of " << size;
          EXPECT_NE(lane_of(from, to, size), Lane::collectives);
        }
      }
    }
  }
}

TEST(LanesTest, TheirNumberDoesNotGrowWithTheGroup) {
  EXPECT_EQ(message_lanes(1, true).size(), 0u);
  EXPECT_EQ(message_lanes(2, false).size(), 2u);
  EXPECT_EQ(message_lanes(2, true).size(), 2u);
  for (int size = 3; size <= 17; ++size) {
    EXPECT_EQ(message_lanes(size, false).size(), 4u) << size;
    EXPECT_EQ(message_lanes(size, true).size(), size % 2 == 0 ? 4u : 6u) << size;
  }
}

TEST(LanesTest, NeighboursAreThoseOfAChainOrARing) {
  EXPECT_THAT(neighbours(3, false),
              testing::ElementsAre(std::pair(0, 1), std::pair(1, 0), std::pair(1, 2), std::pair(2, 1)));
  EXPECT_EQ(neighbours(3, true).size(), 6u);
  EXPECT_EQ(neighbours(5, true).count({4, 0}), 1u);
  EXPECT_EQ(neighbours(2, true).size(), 2u);
}

} // namespace
} // namespace trireme::comm
