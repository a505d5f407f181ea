#include <trireme/base/error.h>
#include <trireme/mesh/mesh.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::mesh {
namespace {

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

MeshShape pipe_data_tensor(int pipe, int data, int tensor) {
  return MeshShape({{Axis::pipe, pipe}, {Axis::data, data}, {Axis::tensor, tensor}});
}

TEST(MeshShapeTest, StagesAreNeighboursAsInTheTutorialsFigure) {
  const MeshShape shape = pipe_data_tensor(2, 2, 1);
  EXPECT_THAT(shape.lines(Axis::data), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(shape.lines(Axis::pipe), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(shape.line(3, Axis::tensor), ElementsAre(3));
}

TEST(MeshShapeTest, RankAndCoordinatesAreInverse) {
  const MeshShape shape = pipe_data_tensor(3, 2, 4);
  for (int rank = 0; rank < shape.size(); ++rank) {
    EXPECT_EQ(shape.rank(shape.coordinates(rank)), rank);
  }
  EXPECT_EQ(shape.coordinates(1), (Coordinates{0, 0, 1})) << "the last axis has adjacent ranks";
}

// The formula of the definition: nested loops count the ranks, and a line is made of those that agree on all other
// axes.
TEST(MeshShapeTest, OneToFiveAxesAreAsTheNestedLoopsSay) {
  const std::vector<std::string> names = {"pipe", "data", "expert", "context", "tensor"};
  for (size_t count = 1; count <= names.size(); ++count) {
    for (int sizes = 0; sizes < (1 << count); ++sizes) { // of 1 and 3 each, the last axis 2 or 3
      std::vector<Axis> axes;
      for (size_t i = 0; i < count; ++i) {
        axes.push_back({names[i], (sizes >> i & 1) != 0 ? 3 : i + 1 == count ? 2 : 1});
      }
      const MeshShape shape(axes);
      std::vector<Coordinates> places = {{}};
      for (const Axis& axis : axes) {
        std::vector<Coordinates> longer;
        for (const Coordinates& place : places) {
          for (int i = 0; i < axis.size; ++i) {
            longer.push_back(place);
            longer.back().push_back(i);
          }
        }
        places = longer;
      }
      ASSERT_EQ(shape.size(), std::ssize(places)) << shape.describe();
      for (int rank = 0; rank < shape.size(); ++rank) {
        EXPECT_EQ(shape.coordinates(rank), places[rank]);
        EXPECT_EQ(shape.rank(places[rank]), rank);
        EXPECT_EQ(shape.coordinate(rank, names[count - 1]), places[rank].back());
      }
      for (unsigned chosen = 0; chosen < 1U << count; ++chosen) {
        Axes together = {};
        for (size_t i = 0; i < count; ++i) {
          if ((chosen >> i & 1) != 0) {
            together.names.push_back(names[i]);
          }
        }
        std::vector<std::vector<int>> lines;
        for (int rank = 0; rank < shape.size(); ++rank) {
          const auto agree = [&](int other) {
            for (size_t i = 0; i < count; ++i) {
              if ((chosen >> i & 1) == 0 && places[rank][i] != places[other][i]) {
                return false;
              }
            }
            return true;
          };
          std::vector<int> line;
          for (int other = 0; other < shape.size(); ++other) {
            if (agree(other)) {
              line.push_back(other);
            }
          }
          EXPECT_EQ(shape.line(rank, together), line);
          if (line.front() == rank) {
            lines.push_back(line);
          }
        }
        EXPECT_EQ(shape.lines(together), lines) << shape.describe() << " of axes " << chosen;
      }
    }
  }
}

TEST(MeshShapeTest, FitTakesTheRestForDataOrListsTheChoices) {
  EXPECT_EQ(MeshShape::fit(12, {{Axis::pipe, 2}, {Axis::data, kRest}, {Axis::tensor, 3}}).size(Axis::data), 2);
  try {
    MeshShape::fit(6, {{Axis::pipe, 4}, {Axis::data, kRest}, {Axis::tensor, 1}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("got 4 * 1 = 4 and 6 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("choose pipe * tensor from 1, 2, 3, 6"));
  }
  EXPECT_THROW(pipe_data_tensor(0, 1, 1), InputError);
}

TEST(MeshShapeTest, MistakesAreNamedAndChoicesListed) {
  const auto fit = [](int ranks, std::vector<Axis> axes) { return error_of([&] { MeshShape::fit(ranks, axes); }); };
  EXPECT_THAT(fit(12, {{"pipe", 2}, {"data", 3}, {"tensor", 4}}),
              AllOf(HasSubstr("pipe * data * tensor must equal the number of ranks, got 2 * 3 * 4 = 24 and 12 ranks"),
                    HasSubstr("Start 24 ranks, or set pipe to 1, or set tensor to 2.")));
  EXPECT_THAT(fit(4, {{"pipe", 3}, {"data", 3}}), HasSubstr("Start 9 ranks, or choose sizes from 1, 2, 4."));
  EXPECT_THAT(fit(4, {{"pipe", 3}, {"data", kRest}}),
              HasSubstr("pipe must divide the number of ranks, got 3 and 4 ranks"));
  EXPECT_THAT(fit(4, {{"pipe", kRest}, {"data", kRest}}), HasSubstr("axis data must have at least one rank, got -1"));
  EXPECT_THAT(fit(4, {{"data", 2}, {"data", 2}}), HasSubstr("two axes are named \"data\""));
  EXPECT_THAT(fit(4, {{"", 4}}), HasSubstr("axis 0 has no name"));
  EXPECT_THAT(fit(1, {}), HasSubstr("at least one axis"));
  EXPECT_THAT(error_of([] { pipe_data_tensor(2, 1, 1).size("context"); }),
              HasSubstr("the mesh has no axis \"context\", it is pipe * data * tensor = 2 * 1 * 1 = 2"));
}

TEST(MeshTest, SumsAlongEachAxisAreTheFormulas) {
  on_ranks(4, [](comm::World& world) {
    Mesh mesh(world.group(), pipe_data_tensor(2, 2, 1));
    for (const Axis& axis : mesh.shape().axes()) {
      at::Tensor sum = torch::tensor({static_cast<double>(world.rank())}, torch::kFloat64);
      mesh.group(axis.name).all_reduce(sum).wait();
      double expected = 0;
      for (const int rank : mesh.shape().line(world.rank(), axis.name)) {
        expected += rank;
      }
      EXPECT_EQ(sum.item<double>(), expected) << axis.name;
      EXPECT_EQ(mesh.group(axis.name).rank(), mesh.coordinate(axis.name));
    }
  });
}

// The sum of world ranks over a group, and what messages call it.
std::string sum_over(const comm::Group& group, int rank) {
  at::Tensor sum = torch::tensor({rank}, torch::kInt64);
  group.all_reduce(sum).wait();
  return concat(group.name(), " = ", sum.item<int64_t>());
}

TEST(MeshTest, AxesTogetherHaveAGroupAndAStageAMeshOfItsOwn) {
  on_ranks(8, [](comm::World& world) {
    const int rank = world.rank();
    const Mesh mesh(world.group(),
                    MeshShape::fit(8, {{Axis::pipe, 2}, {Axis::data, 2}, {Axis::context, kRest}, {Axis::tensor, 1}}),
                    {{Axis::data, Axis::context},
                     {Axis::data, Axis::tensor},
                     {Axis::context, Axis::pipe},
                     {Axis::pipe, Axis::data, Axis::context}});
    const bool first = rank < 4;
    EXPECT_EQ(sum_over(mesh.group({Axis::context, Axis::data}), rank),
              first ? "data+context[0 1 2 3] = 6" : "data+context[4 5 6 7] = 22");
    EXPECT_EQ(sum_over(mesh.group({"pipe", "context"}), rank),
              rank % 4 < 2 ? "pipe+context[0 1 4 5] = 10" : "pipe+context[2 3 6 7] = 18");
    EXPECT_EQ(sum_over(mesh.group({Axis::pipe, Axis::data, Axis::context}), rank), "world = 28");
    EXPECT_EQ(mesh.group({Axis::tensor, Axis::data}).name(), mesh.group(Axis::data).name()) << "tensor is 1";
    EXPECT_EQ(mesh.group({Axis::tensor}).size(), 1);
    EXPECT_THAT(error_of([&] { mesh.group({Axis::pipe, Axis::data}); }),
                HasSubstr("no group over the axes pipe, data"));
    EXPECT_THAT(error_of([&] { mesh.group("depth"); }), HasSubstr("no axis \"depth\""));

    // Two stages of four ranks: each has a mesh of its own, with groups that no other stage takes part in.
    const comm::Group& stage = mesh.group({Axis::data, Axis::context});
    if (first) {
      const Mesh inside(stage, MeshShape({{Axis::data, 2}, {Axis::tensor, 2}}));
      EXPECT_EQ(sum_over(inside.group(Axis::tensor), rank), rank < 2 ? "tensor[0 1] = 1" : "tensor[2 3] = 5");
      EXPECT_EQ(sum_over(inside.group(Axis::data), rank),
                concat("data[", rank % 2, ' ', rank % 2 + 2, "] = ", 2 * (rank % 2) + 2));
    } else {
      const Mesh inside(stage, MeshShape({{Axis::expert, 4}}));
      EXPECT_EQ(sum_over(inside.group(Axis::expert), rank), "data+context[4 5 6 7] = 22");
      const Mesh pairs(stage, MeshShape({{Axis::tensor, 2}, {Axis::data, 2}}));
      EXPECT_EQ(sum_over(pairs.group(Axis::data), rank), rank < 6 ? "data[4 5] = 9" : "data[6 7] = 13");
      EXPECT_EQ(pairs.coordinate(Axis::tensor), rank / 6);
    }
    EXPECT_EQ(sum_over(mesh.group(), rank), "world = 28");
  });
}

TEST(MeshTest, RefusesAShapeOfAnotherSize) {
  on_ranks(2, [](comm::World& world) { EXPECT_THROW(Mesh(world.group(), pipe_data_tensor(1, 3, 1)), InputError); });
}

} // namespace
} // namespace trireme::mesh
