#include <trireme/base/error.h>
#include <trireme/comm/algorithms/all_reduce.h>

#include "tests/comm/group_checks.h"
#include "tests/support/run_ranks.h"

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// The survey's figures: a ring needs 2(N-1) rounds, and what a rank sends does not grow with the ranks.
TEST(CostTest, ClosedForms) {
  for (const int ranks : {2, 3, 4, 8, 64}) {
    const Cost ring = cost(Algorithm::ring, ranks, 6400);
    EXPECT_EQ(ring.steps, 2 * (ranks - 1));
    EXPECT_LT(ring.bytes_busiest, 2 * 6400);
    EXPECT_DOUBLE_EQ(ring.bytes_busiest * ranks, 2.0 * 6400 * (ranks - 1));
  }
  EXPECT_EQ(cost(Algorithm::tree, 5, 100).steps, 6);
  EXPECT_EQ(cost(Algorithm::tree, 8, 100).bytes_busiest, 300);
  EXPECT_EQ(cost(Algorithm::halving_doubling, 8, 800).steps, 6);
  EXPECT_EQ(cost(Algorithm::halving_doubling, 8, 800).bytes_busiest, 1400);
  EXPECT_EQ(cost(Algorithm::halving_doubling, 5, 800).steps, 6);
  EXPECT_EQ(cost(Algorithm::halving_doubling, 5, 800).bytes_busiest, 1200 + 800);
  EXPECT_EQ(cost(Algorithm::naive, 5, 100).steps, 8);
  EXPECT_EQ(cost(Algorithm::naive, 5, 100).bytes_busiest, 400);
  EXPECT_EQ(cost(Algorithm::ring, 1, 100).steps, 0);
}

TEST(CostTest, NamesAreFoundAgain) {
  for (const Algorithm algorithm : all_algorithms()) {
    EXPECT_EQ(algorithm_named(name(algorithm)), algorithm);
  }
  try {
    algorithm_named("butterfly");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ring, tree, halving-doubling, naive"));
  }
}

class AlgorithmsTest : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  std::vector<std::string> run(const std::function<void(const Group&)>& body) {
    test::RunOptions options;
    options.backend = std::get<0>(GetParam());
    return test::run_ranks(std::get<1>(GetParam()), [&](World& world) { body(world.group()); }, options);
  }
};

void expect_as_the_group(const Group& group, Algorithm algorithm, int64_t numel, at::ScalarType type, ReduceOp op) {
  const std::string what = concat(name(algorithm), " of ", numel, ' ', c10::toString(type));
  at::Tensor wanted = numbers(group.rank(), numel, type);
  at::Tensor found = wanted.clone();
  group.all_reduce(wanted, op).wait();
  all_reduce(algorithm, group, found, op);
  expect_equal(found, wanted, what.c_str());
}

TEST_P(AlgorithmsTest, EqualTheGroupsOwn) {
  EXPECT_THAT(run([](const Group& group) {
                for (const Algorithm algorithm : all_algorithms()) {
                  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kInt32}) {
                    for (const int64_t numel : {1, 2, 3, 7, 1001}) { // fewer than ranks, and nothing that divides
                      expect_as_the_group(group, algorithm, numel, type, ReduceOp::sum);
                    }
                  }
                  expect_as_the_group(group, algorithm, 101, torch::kFloat64, ReduceOp::max);
                  expect_as_the_group(group, algorithm, 101, torch::kHalf, ReduceOp::min);
                  expect_as_the_group(group, algorithm, 300'001, torch::kFloat32,
                                      ReduceOp::sum); // several segments a block
                }
              }),
              IsEmpty());
}

TEST_P(AlgorithmsTest, TakeTheStepsAndBytesOfTheirFormula) {
  EXPECT_THAT(run([](const Group& group) {
                const int64_t numel = 2 * 3 * 4 * 5 * 1000;
                for (const Algorithm algorithm : all_algorithms()) {
                  auto tensor = torch::ones({numel});
                  const int64_t before = group.bytes_sent();
                  const Traffic mine = all_reduce(algorithm, group, tensor);
                  EXPECT_EQ(group.bytes_sent() - before, mine.bytes_sent) << name(algorithm);
                  auto busiest = torch::tensor({mine.steps, mine.bytes_sent});
                  auto total = busiest.clone();
                  group.all_reduce(busiest, ReduceOp::max).wait();
                  group.all_reduce(total).wait();
                  const Cost formula = cost(algorithm, group.size(), numel * 4);
                  EXPECT_EQ(busiest[0].item<int64_t>(), formula.steps) << name(algorithm);
                  EXPECT_EQ(busiest[1].item<int64_t>(), formula.bytes_busiest) << name(algorithm);
                  EXPECT_EQ(total[1].item<int64_t>(), 2 * numel * 4 * (group.size() - 1)) << name(algorithm);
                }
              }),
              IsEmpty());
}

TEST_P(AlgorithmsTest, RefuseWhatTheyCannotReduce) {
  EXPECT_THAT(run([](const Group& group) {
                auto complex = torch::zeros({4}, torch::kComplexFloat);
                EXPECT_THROW(all_reduce_ring(group, complex), Error);
                auto columns = torch::zeros({4, 4}).t();
                EXPECT_THROW(all_reduce_tree(group, columns), Error);
                auto nothing = torch::zeros({0});
                all_reduce_naive(group, nothing);
              }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, AlgorithmsTest,
                         testing::Combine(testing::Values("gloo", "shm"), testing::Values(2, 3, 4, 5)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), std::get<1>(info.param), "Ranks");
                         });

} // namespace
} // namespace trireme::comm
