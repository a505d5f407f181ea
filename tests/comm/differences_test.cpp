// Documents of ranks, compared leaf by leaf.
#include <trireme/comm/differences.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::comm {
namespace {

using nlohmann::ordered_json;
using test::on_ranks;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> paths(const std::vector<LeafDifference>& found) {
  std::vector<std::string> all;
  for (const LeafDifference& one : found) {
    all.push_back(one.path);
  }
  return all;
}

TEST(DifferencesTest, NoneOfEqualDocuments) {
  on_ranks(3, [](World& world) {
    EXPECT_THAT(differences(world.group(), ordered_json{{"a", 1}, {"b", {1, 2}}}, "test"), IsEmpty());
    EXPECT_THAT(differences(world.group(), ordered_json::object(), "test"), IsEmpty());
    const ordered_json one = {{"a", 1}, {"b", 2}};
    const ordered_json other = {{"b", 2}, {"a", 1}};
    EXPECT_THAT(differences(world.group(), world.rank() == 1 ? other : one, "test"), IsEmpty()) << "another order";
  });
}

TEST(DifferencesTest, EveryRankGetsLeavesInTheFirstRanksOrderWithWhoHasWhat) {
  on_ranks(4, [](World& world) {
    const int rank = world.rank();
    ordered_json mine = {{"z", {{"lr", rank == 2 ? 0.5 : 0.25}}}, {"same", true}, {"list", {1, rank % 2}}};
    if (rank == 3) {
      mine["more/of it"] = "text that makes this document longer than the others";
    }
    const std::vector<LeafDifference> found = differences(world.group(), mine, "test");
    ASSERT_THAT(paths(found), ElementsAre("/z/lr", "/list/1", "/more~1of it"));
    EXPECT_EQ(found[0].first(), "0.25");
    EXPECT_EQ(found[0].other(), "0.5");
    EXPECT_EQ(found[0].ranks(), "rank 2 and rank 0");
    EXPECT_THAT(found[0].values[0].ranks, ElementsAre(0, 1, 3));
    EXPECT_EQ(found[1].ranks(), "ranks 1, 3 and rank 0");
    EXPECT_EQ(found[2].first(), kNothing);
    EXPECT_EQ(nlohmann::json::json_pointer(found[2].path).back(), "more/of it");
  });
}

TEST(DifferencesTest, RanksOfASubgroupAreThoseOfTheWorld) {
  on_ranks(3, [](World& world) {
    const Group last = world.group().subgroup({1, 2}, "last");
    if (world.rank() > 0) {
      const std::vector<LeafDifference> found = differences(last, nlohmann::json{{"a", world.rank()}}, "test");
      ASSERT_EQ(found.size(), 1);
      EXPECT_EQ(found[0].ranks(), "rank 2 and rank 1");
    }
  });
}

TEST(DifferencesTest, AnEmptyDocumentLacksAllLeaves) {
  on_ranks(2, [](World& world) {
    const ordered_json mine = world.rank() == 0 ? ordered_json::object() : ordered_json{{"a", 1}};
    EXPECT_THAT(paths(differences(world.group(), mine, "test")), ElementsAre("/a"));
  });
}

// Text of a file that is not UTF-8 stops no rank.
TEST(DifferencesTest, BytesThatAreNoTextAreReplaced) {
  on_ranks(2, [](World& world) {
    const auto found = differences(world.group(), ordered_json{{"a", world.rank() == 0 ? "\xff" : "b"}}, "test");
    ASSERT_EQ(found.size(), 1);
    EXPECT_EQ(found[0].other(), "\"b\"");
  });
}

} // namespace
} // namespace trireme::comm
