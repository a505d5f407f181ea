#include <trireme/comm/world.h>

#include "tests/comm/group_checks.h"
#include "tests/support/run_mpi.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// run_ranks over that backend.
std::vector<std::string> run_over(const std::string& backend, int ranks, const std::function<void(World&)>& body) {
  test::RunOptions options;
  if (test::is_mpi(backend)) {
    return test::run_over_mpi(backend, ranks, body, options);
  }
  options.backend = backend;
  options.hosts = backend == "shm+gloo" ? 2 : 1;
  return test::run_ranks(ranks, body, options);
}

class GroupTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = test::is_mpi(GetParam()) ? test::why_not_mpi(GetParam()) : ""; !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
};

TEST_P(GroupTest, ThreeRanksAddUpTheDemo) {
  EXPECT_THAT(run_over(GetParam(), 3,
                       [](World& world) {
                         const std::vector<std::vector<float>> start = {{1, 2, 3}, {10, 20, 30}, {4, 5, 6}};
                         auto mine = torch::tensor(start[world.rank()]);
                         world.group().all_reduce(mine).wait();
                         expect_equal(mine, torch::tensor({15.0F, 27.0F, 39.0F}), "demo");
                       }),
              IsEmpty());
}

class AllOperationsTest : public testing::TestWithParam<std::tuple<const char*, int, at::ScalarType>> {
 protected:
  void SetUp() override {
    const std::string backend = std::get<0>(GetParam());
    if (const std::string why = test::is_mpi(backend) ? test::why_not_mpi(backend) : ""; !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
};

TEST_P(AllOperationsTest, EqualTheirFormula) {
  const auto [backend, size, type] = GetParam();
  EXPECT_THAT(run_over(size == 1 ? "auto" : backend, size,
                       [backend = backend, type = type, size = size](World& world) {
                         const Group& group = world.group();
                         ASSERT_EQ(group.size(), size);
                         EXPECT_STREQ(group.backend(), size == 1 ? "null" : test::is_mpi(backend) ? "mpi" : backend);
                         check_every_operation(group, type);
                       }),
              IsEmpty());
}

std::string name_of(const testing::TestParamInfo<AllOperationsTest::ParamType>& info) {
  const std::string backend = std::get<0>(info.param);
  return concat(backend == "shm+gloo" ? "hierarchy" : backend, std::get<1>(info.param), "Ranks",
                c10::toString(std::get<2>(info.param)));
}
const auto kTypes =
    testing::Values(torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kHalf, torch::kInt64, torch::kUInt8);
INSTANTIATE_TEST_SUITE_P(OneHost, AllOperationsTest,
                         testing::Combine(testing::Values("gloo", "shm"), testing::Values(1, 2, 3, 4), kTypes),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoHosts, AllOperationsTest,
                         testing::Combine(testing::Values("shm+gloo"), testing::Values(4, 6), kTypes), name_of);
// Fewer, because every mpirun takes a second.
INSTANTIATE_TEST_SUITE_P(Mpi, AllOperationsTest,
                         testing::Combine(testing::Values("openmpi", "mpich"), testing::Values(2, 3),
                                          testing::Values(torch::kFloat32, torch::kBFloat16, torch::kInt64)),
                         name_of);

TEST_P(GroupTest, ReduceScatterOfBFloat16AddsInFloat) {
  EXPECT_THAT(run_over(GetParam(), 3,
                       [](World& world) {
                         // 256 + 1 is 256 in bfloat16, 256 + 1 + 1 is 258: only a sum in float sees it.
                         auto whole = torch::full({3}, world.rank() == 0 ? 256.0 : 1.0, torch::kBFloat16);
                         auto mine = torch::empty({1}, torch::kBFloat16);
                         world.group().reduce_scatter(mine, whole).wait();
                         EXPECT_EQ(mine.item<float>(), 258.0F);
                       }),
              IsEmpty());
}

TEST_P(GroupTest, ManyOperationsUnderWayAtOnce) {
  EXPECT_THAT(run_over(GetParam(), 3,
                       [](World& world) {
                         std::vector<at::Tensor> tensors;
                         std::vector<Work> works;
                         for (int index = 0; index < 50; ++index) {
                           tensors.push_back(torch::full({100 + index * 37}, index + world.rank(), torch::kFloat32));
                           works.push_back(world.group().all_reduce(tensors.back(), ReduceOp::sum, "many"));
                         }
                         for (int index = 49; index >= 0; --index) {
                           works[index].wait();
                           EXPECT_TRUE(works[index].done());
                           expect_equal(tensors[index],
                                        torch::full({100 + index * 37}, 3.0F * index + 3, torch::kFloat32), "sum");
                         }
                       }),
              IsEmpty());
}

TEST_P(GroupTest, DroppedWorkIsFinishedAllTheSame) {
  EXPECT_THAT(run_over(GetParam(), 2,
                       [](World& world) {
                         auto tensor = torch::ones({100'000});
                         {
                           auto work = world.group().all_reduce(tensor);
                         }
                         expect_equal(tensor, torch::full({100'000}, 2.0F), "sum");
                       }),
              IsEmpty());
}

TEST_P(GroupTest, MessagesKeepTheirTagsAndOrder) {
  EXPECT_THAT(run_over(GetParam(), 3,
                       [](World& world) {
                         const Group& group = world.group();
                         const int next = (group.rank() + 1) % 3;
                         const int previous = (group.rank() + 2) % 3;
                         auto first = torch::full({3}, group.rank(), torch::kFloat32);
                         auto second = torch::full({2000}, group.rank() + 10, torch::kInt64);
                         auto third = torch::full({3}, group.rank() + 20, torch::kFloat32);
                         auto got_first = torch::zeros({3});
                         auto got_second = torch::zeros({2000}, torch::kInt64);
                         auto got_third = torch::zeros({3});
                         // Receives of tag 7 in order; the one of tag 9 asked for first although it is sent second.
                         std::vector<Work> works = {
                             group.recv(got_second, previous, 9), group.recv(got_first, previous, 7),
                             group.recv(got_third, previous, 7),  group.send(first, next, 7),
                             group.send(second, next, 9),         group.send(third, next, 7)};
                         for (auto& work : works) {
                           work.wait();
                         }
                         expect_equal(got_first, torch::full({3}, previous, torch::kFloat32), "first");
                         expect_equal(got_second, torch::full({2000}, previous + 10, torch::kInt64), "second");
                         expect_equal(got_third, torch::full({3}, previous + 20, torch::kFloat32), "third");
                       }),
              IsEmpty());
}

TEST_P(GroupTest, DoneOfAMessageTurnsTrueWithoutWait) {
  EXPECT_THAT(run_over(GetParam(), 2,
                       [](World& world) {
                         const Group& group = world.group();
                         auto tensor = torch::full({4}, group.rank(), torch::kFloat32);
                         if (group.rank() == 0) {
                           auto work = group.recv(tensor, 1);
                           EXPECT_FALSE(work.done());
                           group.barrier().wait();
                           while (!work.done()) {
                           }
                           EXPECT_EQ(tensor[0].item<float>(), 1.0F);
                           work.wait();
                         } else {
                           group.barrier().wait();
                           group.send(tensor, 0).wait();
                         }
                       }),
              IsEmpty());
}

TEST_P(GroupTest, SubgroupsWorkSideBySide) {
  EXPECT_THAT(run_over(GetParam(), 4,
                       [](World& world) {
                         // The mesh of two stages and two data ranks: data {0,1} {2,3}, pipe {0,2} {1,3}, and one
                         // backwards.
                         const Group low = world.subgroup({0, 1}, "data");
                         const Group high = world.subgroup({2, 3}, "data");
                         const Group even = world.subgroup({0, 2}, "pipe");
                         const Group odd = world.subgroup({1, 3}, "pipe");
                         const Group backwards = world.subgroup({3, 1, 0}, "backwards");
                         const Group& data = world.rank() < 2 ? low : high;
                         const Group& pipe = world.rank() % 2 == 0 ? even : odd;
                         EXPECT_EQ(data.rank(), world.rank() % 2);
                         EXPECT_EQ(pipe.rank(), world.rank() / 2);
                         EXPECT_EQ((world.rank() < 2 ? high : low).size(), 1);
                         EXPECT_STREQ((world.rank() < 2 ? high : low).backend(), "null");
                         EXPECT_EQ(data.name(), "data");
                         auto a = torch::full({5}, world.rank(), torch::kFloat32);
                         auto b = a.clone();
                         auto first = data.all_reduce(a);
                         auto second = pipe.all_reduce(b);
                         second.wait();
                         first.wait();
                         EXPECT_EQ(a[0].item<float>(), world.rank() < 2 ? 1.0F : 5.0F);
                         EXPECT_EQ(b[0].item<float>(), world.rank() % 2 == 0 ? 2.0F : 4.0F);
                         if (world.rank() != 2) {
                           EXPECT_THAT(backwards.members(), ElementsAre(3, 1, 0));
                           auto c = torch::full({1}, backwards.rank(), torch::kFloat32);
                           backwards.broadcast(c, 2).wait();
                           EXPECT_EQ(c.item<float>(), 2.0F);
                           EXPECT_EQ(backwards.rank(), world.rank() == 3 ? 0 : world.rank() == 1 ? 1 : 2);
                         } else {
                           EXPECT_EQ(backwards.size(), 1);
                         }
                       }),
              IsEmpty());
}

TEST_P(GroupTest, ARankThatIsDoneEarlyDoesNotDisturbTheOthers) {
  EXPECT_THAT(run_over(GetParam(), 3,
                       [](World& world) {
                         if (world.rank() == 0) {
                           return; // closes its world
                         }
                         auto tensor = torch::full({4}, world.rank(), torch::kFloat32);
                         std::this_thread::sleep_for(std::chrono::milliseconds(800)); // the watch threads have seen it
                         if (world.rank() == 1) {
                           world.group().send(tensor, 2).wait();
                         } else {
                           world.group().recv(tensor, 1).wait();
                         }
                         EXPECT_EQ(tensor[0].item<float>(), 1.0F);
                       }),
              IsEmpty());
}

TEST_P(GroupTest, CountsBytesByTheClosedForms) {
  EXPECT_THAT(run_over(GetParam(), 3,
                       [](World& world) {
                         const Group& group = world.group();
                         const auto sent_by = [&](auto&& call) {
                           const int64_t before = group.bytes_sent();
                           call();
                           return group.bytes_sent() - before;
                         };
                         EXPECT_EQ(group.bytes_sent(), 0);
                         auto whole = torch::ones({300});
                         auto part = torch::ones({100});
                         EXPECT_EQ(sent_by([&] { group.all_reduce(whole).wait(); }), 1600);
                         EXPECT_EQ(sent_by([&] { group.reduce_scatter(part, whole).wait(); }), 800);
                         EXPECT_EQ(sent_by([&] { group.all_gather(whole, part).wait(); }), 800);
                         // The tree of three: the root has two children, the others none.
                         EXPECT_EQ(sent_by([&] { group.broadcast(whole, 1).wait(); }), group.rank() == 1 ? 2400 : 0);
                         auto out = torch::empty({300});
                         EXPECT_EQ(sent_by([&] { group.all_to_all(out, whole).wait(); }), 800);
                       }),
              IsEmpty());
}

TEST_P(GroupTest, EmptyTensorsCostNothing) {
  EXPECT_THAT(run_over(GetParam(), 2,
                       [](World& world) {
                         auto none = torch::empty({0});
                         world.group().all_reduce(none).wait();
                         world.group().all_gather(none, none.clone()).wait();
                         world.group().broadcast(none, 0).wait();
                         EXPECT_EQ(world.group().bytes_sent(), 0);
                       }),
              IsEmpty());
}

TEST_P(GroupTest, ParametersThatRequireGradMayBeSent) {
  EXPECT_THAT(run_over(GetParam(), 2,
                       [](World& world) {
                         auto weight = torch::full({6}, world.rank() + 1.0F).requires_grad_();
                         world.group().broadcast(weight, 0).wait();
                         auto whole = torch::zeros({12});
                         world.group().all_gather(whole, weight).wait();
                         expect_equal(whole, torch::ones({12}), "gathered");
                         auto part = torch::zeros({3}).requires_grad_();
                         world.group().reduce_scatter(part, weight).wait();
                         expect_equal(part, torch::full({3}, 2.0F), "scattered");
                       }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, GroupTest, testing::Values("gloo", "shm", "openmpi", "mpich"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace
} // namespace trireme::comm
