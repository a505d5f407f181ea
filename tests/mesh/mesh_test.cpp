#include <trireme/base/error.h>
#include <trireme/mesh/mesh.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::mesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using test::run_ranks;
using testing::IsEmpty;

TEST(MeshShapeTest, StagesAreNeighboursAsInTheTutorialsFigure) {
  const MeshShape shape(2, 2, 1);
  EXPECT_THAT(shape.lines(Axis::data), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(shape.lines(Axis::pipe), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(shape.line(3, Axis::tensor), ElementsAre(3));
}

TEST(MeshShapeTest, RankAndCoordinatesAreInverse) {
  const MeshShape shape(3, 2, 4);
  for (int rank = 0; rank < shape.world_size(); ++rank) {
    EXPECT_EQ(shape.rank(shape.coordinates(rank)), rank);
  }
  EXPECT_EQ(shape.coordinates(1), (Coordinates{0, 0, 1})) << "the last axis has adjacent ranks";
}

TEST(MeshShapeTest, FitTakesTheRestForDataOrListsTheChoices) {
  EXPECT_EQ(MeshShape::fit(12, 2, 3).size(Axis::data), 2);
  try {
    MeshShape::fit(6, 4, 1);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("got 4 * 1 = 4 and 6 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("choose pipe * tensor from 1, 2, 3, 6"));
  }
  EXPECT_THROW(MeshShape(0, 1, 1), InputError);
}

TEST(MeshTest, SumsAlongEachAxisAreTheFormulas) {
  EXPECT_THAT(run_ranks(4,
                        [](comm::World& world) {
                          Mesh mesh(world, MeshShape(2, 2, 1));
                          for (const Axis axis : kAxes) {
                            at::Tensor sum = torch::tensor({static_cast<double>(world.rank())}, torch::kFloat64);
                            mesh.group(axis).all_reduce(sum).wait();
                            double expected = 0;
                            for (const int rank : mesh.shape().line(world.rank(), axis)) {
                              expected += rank;
                            }
                            EXPECT_EQ(sum.item<double>(), expected) << axis_name(axis);
                            EXPECT_EQ(mesh.group(axis).rank(), mesh.coordinate(axis));
                          }
                        }),
              IsEmpty());
}

TEST(MeshTest, RefusesAShapeOfAnotherSize) {
  EXPECT_THAT(run_ranks(2, [](comm::World& world) { EXPECT_THROW(Mesh(world, MeshShape(1, 3, 1)), InputError); }), IsEmpty());
}

} // namespace
} // namespace trireme::mesh
