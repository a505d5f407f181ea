// Horovod's operations by name equal their formulas, whatever the order in which ranks ask for them.
#include "job.h"

#include <trireme/base/error.h>
#include <trireme/extensions/horovod/adasum.h>
#include <trireme/horovod.h>

#include <tests/support/gate.h>
#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <thread>

namespace trireme::horovod {
namespace {

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor of_rank(int rank, at::IntArrayRef sizes, double offset = 0) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kFloat64).view(sizes) * (rank + 1.3) + offset);
}

at::Tensor all_of(int ranks, at::IntArrayRef sizes, double offset = 0) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(of_rank(rank, sizes, offset));
  }
  return torch::stack(all);
}

class HorovodTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HorovodTest, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

TEST_P(HorovodTest, AllreduceWithEveryOp) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    const int n = size();
    const at::Tensor mine = of_rank(rank(), {3, 5}), all = all_of(n, {3, 5});
    EXPECT_TRUE(allreduce(mine).allclose(all.mean(0), 1e-12));
    EXPECT_TRUE(allreduce(mine, {.op = Op::sum, .prescale = 2, .postscale = 0.25}).allclose(all.sum(0) / 2, 1e-12));
    EXPECT_TRUE(allreduce(mine, {.op = Op::min}).equal(all.amin(0)));
    EXPECT_TRUE(allreduce(mine, {.op = Op::max}).equal(all.amax(0)));
    EXPECT_TRUE(allreduce(mine, {.op = Op::product}).allclose(all.prod(0), 1e-12));
    EXPECT_TRUE(allreduce(torch::full({2}, rank() + 1), {.op = Op::sum}).equal(torch::full({2}, n * (n + 1) / 2)));
    const at::Tensor half = allreduce(mine.to(at::kFloat), {.compression = Compression::fp16});
    EXPECT_EQ(half.scalar_type(), at::kFloat);
    EXPECT_TRUE(half.allclose(all.mean(0).to(at::kFloat), 0.01, 0.005));
    at::Tensor changed = mine.clone();
    EXPECT_TRUE(allreduce_(changed).is_same(changed));
    EXPECT_TRUE(changed.allclose(all.mean(0), 1e-12));
    EXPECT_TRUE(allreduce(mine.t()).allclose(all.mean(0).t(), 1e-12)) << "not contiguous";
    const std::vector<at::Tensor> group =
        grouped_allreduce({mine, mine[0].clone(), torch::zeros({0}, at::kDouble)}, {.op = Op::sum});
    EXPECT_TRUE(group.at(0).allclose(all.sum(0), 1e-12));
    EXPECT_TRUE(group.at(1).allclose(all.sum(0)[0], 1e-12));
    EXPECT_EQ(group.at(2).numel(), 0);
  });
}

TEST_P(HorovodTest, TheOtherOperations) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    const int n = size(), r = rank();
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < n; ++rank) {
      parts.push_back(of_rank(rank, {rank, 2}));
    }
    EXPECT_TRUE(allgather(parts[r]).equal(torch::cat(parts))) << "rank 0 has no rows";
    for (int root = 0; root < n; ++root) {
      EXPECT_TRUE(broadcast(of_rank(r, {4}), root).equal(of_rank(root, {4})));
    }
    at::Tensor place = of_rank(r, {4});
    broadcast_(place, n - 1);
    EXPECT_TRUE(place.equal(of_rank(n - 1, {4})));

    // Rank r sends t + 1 rows to each t < r, and none to others.
    const auto splits_of = [&](int rank) {
      std::vector<int64_t> splits;
      for (int to = 0; to < n; ++to) {
        splits.push_back(to < rank ? to + 1 : 0);
      }
      return splits;
    };
    const auto rows_of = [&](int rank) { return rank * (rank + 1) / 2; };
    const auto [got, received] = alltoall(of_rank(r, {rows_of(r), 3}), splits_of(r));
    std::vector<at::Tensor> expected;
    std::vector<int64_t> counts;
    for (int from = 0; from < n; ++from) {
      counts.push_back(splits_of(from)[r]);
      expected.push_back(of_rank(from, {rows_of(from), 3}).slice(0, rows_of(r), rows_of(r) + counts.back()));
    }
    EXPECT_EQ(received, counts);
    EXPECT_TRUE(got.equal(torch::cat(expected)));
    EXPECT_TRUE(alltoall(torch::arange(2 * n) + 100 * r)
                    .first.view({n, 2})
                    .slice(1, 0, 1)
                    .flatten()
                    .equal(torch::arange(n) * 100 + 2 * r))
        << "equal parts";

    const at::Tensor whole = of_rank(r, {7, 2}), sum = all_of(n, {7, 2}).sum(0);
    int64_t begin = 0;
    for (int rank = 0; rank < r; ++rank) {
      begin += 7 / n + (rank < 7 % n ? 1 : 0);
    }
    const int64_t rows = 7 / n + (r < 7 % n ? 1 : 0);
    EXPECT_TRUE(reducescatter(whole, {.op = Op::sum}).allclose(sum.slice(0, begin, begin + rows), 1e-12));
    EXPECT_TRUE(reducescatter(whole).allclose(sum.slice(0, begin, begin + rows) / n, 1e-12));
    barrier();
  });
}

// Each rank asks in an order of its own, for more than one message holds and more than one fusion buffer.
TEST_P(HorovodTest, RanksMayAskInAnyOrder) {
  on_ranks(GetParam(), [](comm::World& world) {
    ::setenv("HOROVOD_FUSION_THRESHOLD", concat(20000 * (world.rank() + 1)).c_str(),
             1); // rank 0's counts
    const Job job(world);
    constexpr int kTensors = 200;
    for (int round = 0; round < 3; ++round) {
      std::vector<Handle> handles(kTensors);
      for (int i = 0; i < kTensors; ++i) {
        const int which = (i * (rank() % 2 == 0 ? 7 : 11) + 13 * rank()) % kTensors; // both prime to 200
        handles[which] = allreduce_async(of_rank(rank(), {1 + which}, which),
                                         {.name = concat("a tensor with a name of some length ", which),
                                          .op = which % 3 == 0 ? Op::average : Op::sum});
        if (i % 50 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * rank()));
        }
      }
      for (int i = kTensors - 1; i >= 0; --i) {
        const at::Tensor sum = all_of(size(), {1 + i}, i).sum(0);
        EXPECT_TRUE(synchronize(handles[i]).allclose(i % 3 == 0 ? sum / size() : sum, 1e-12)) << i;
        EXPECT_TRUE(poll(handles[i]));
      }
    }
  });
}

TEST_P(HorovodTest, SeveralThreadsMayAsk) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([thread] {
        for (int i = 0; i < 20; ++i) {
          const at::Tensor sum = allreduce(of_rank(rank(), {5}, thread + i), {.name = concat(thread), .op = Op::sum});
          EXPECT_TRUE(sum.allclose(all_of(size(), {5}, thread + i).sum(0), 1e-12));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_P(HorovodTest, JoinedRanksAddNothing) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    for (int round = 0; round < 2; ++round) {
      const int batches = 1 + 2 * ((rank() + round) % size());
      for (int batch = 0; batch < batches; ++batch) {
        std::vector<at::Tensor> active;
        for (int other = 0; other < size(); ++other) {
          if (batch < 1 + 2 * ((other + round) % size())) {
            active.push_back(of_rank(other, {6}, batch));
          }
        }
        EXPECT_TRUE(allreduce(of_rank(rank(), {6}, batch)).allclose(torch::stack(active).mean(0), 1e-12))
            << "batch " << batch;
      }
      EXPECT_EQ((join() + round) % size(), size() - 1) << "the one with most batches";
    }
  });
}

TEST(HorovodSetsTest, RanksOutsideOfASetGoOn) {
  on_ranks(4, [](comm::World& world) {
    const Job job(world);
    const ProcessSet even = add_process_set({2, 0}), odd = add_process_set({1, 3});
    const ProcessSet& mine = rank() % 2 == 0 ? even : odd;
    const ProcessSet& other = rank() % 2 == 0 ? odd : even;
    EXPECT_EQ(mine.size(), 2);
    EXPECT_EQ(mine.rank(), rank() / 2);
    EXPECT_FALSE(other.included());
    EXPECT_THAT(even.ranks(), ElementsAre(0, 2));
    if (rank() % 2 == 0) {
      EXPECT_TRUE(allreduce(torch::full({2}, rank()), {.op = Op::sum, .process_set = even}).eq(2).all().item<bool>());
    }
    EXPECT_TRUE(broadcast(torch::full({1}, rank()), 1, "x", mine).item<int64_t>() == (rank() % 2 == 0 ? 2 : 3));
    EXPECT_THAT(error_of([&] { allreduce(torch::zeros({1}), {.process_set = other}); }),
                HasSubstr("does not belong to the process set"));
    EXPECT_THAT(error_of([] { add_process_set({0, 0}); }), HasSubstr("distinct numbers from 0 to 3"));
    EXPECT_TRUE(allreduce(torch::ones({1}), {.op = Op::sum}).item<double>() == 4);
  });
}

// Two sets at once, each with a thread of its own.
TEST(HorovodSetsTest, EachMayDoAnythingAtTheSameTime) {
  on_ranks(4, [](comm::World& world) {
    const Job job(world);
    const ProcessSet row = add_process_set({0, 1});
    const ProcessSet other = add_process_set({2, 3});
    const ProcessSet& mine = rank() < 2 ? row : other;
    std::vector<Handle> handles;
    for (int i = 0; i < 20; ++i) {
      handles.push_back(allreduce_async(of_rank(rank(), {4}, i), {.op = Op::adasum}));
      handles.push_back(allreduce_async(of_rank(rank(), {4}, i), {.op = Op::adasum, .process_set = mine}));
    }
    const int first = rank() / 2 * 2;
    for (int i = 0; i < 20; ++i) {
      const at::Tensor pairs[] = {adasum_of(of_rank(0, {4}, i), of_rank(1, {4}, i)),
                                  adasum_of(of_rank(2, {4}, i), of_rank(3, {4}, i))};
      EXPECT_TRUE(synchronize(handles[2 * i]).equal(adasum_of(pairs[0], pairs[1])));
      EXPECT_TRUE(synchronize(handles[2 * i + 1]).equal(pairs[first / 2]));
    }
  });
}

test::RunOptions two_hosts() {
  test::RunOptions options;
  options.hosts = 2;
  return options;
}

TEST(HorovodHostsTest, AreCounted) {
  on_ranks(
      4,
      [](comm::World& world) {
        const Job job(world);
        EXPECT_EQ(cross_size(), 2);
        EXPECT_EQ(cross_rank(), rank() / 2);
        EXPECT_TRUE(allreduce(torch::ones({3}), {.op = Op::sum}).eq(4).all().item<bool>());
      },
      two_hosts());
}

TEST(HorovodWaysTest, InInferenceMode) {
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    at::Tensor outside = torch::full({2}, 1.0 + rank());
    {
      const c10::InferenceMode inference;
      at::Tensor x = torch::full({2}, 1.0 + rank());
      EXPECT_EQ(allreduce(x, {.op = Op::sum})[0].item<double>(), 3);
      allreduce_(x, {.op = Op::sum});
      EXPECT_EQ(x[1].item<double>(), 3);
      broadcast_(x = x * (1 + rank()), 1);
      EXPECT_EQ(x[0].item<double>(), 6);
      allreduce_(outside);
    }
    const at::Tensor w = torch::ones({2}, torch::requires_grad());
    (allreduce(outside) * w).sum().backward(); // autograd may save what came out
    EXPECT_EQ(w.grad()[0].item<double>(), 1.5);
  });
}

TEST(HorovodErrorTest, SayWhatDiffersAndLeaveTheRestAlone) {
  test::Gate asked_twice;
  on_ranks(2, [&](comm::World& world) {
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({1})); }), HasSubstr("init()"));
    const Job job(world);
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({2 + rank()}), {.name = "x"}); }),
                HasSubstr("the shape of \"x\" is [2] on rank 0 and [3] on rank 1"));
    const Handle first = allreduce_async(torch::zeros({1}), {.name = "y"});
    const Handle good = allreduce_async(torch::full({1}, 1.0 + rank()), {.name = "z", .op = Op::sum});
    if (rank() == 0) {
      const auto twice = [] {
        const Handle a = allreduce_async(torch::zeros({1}), {.name = "w"});
        allreduce_async(torch::zeros({1}), {.name = "w"});
      };
      EXPECT_THAT(error_of(twice), HasSubstr("while an operation of this name is in progress"));
      asked_twice.open();
    } else {
      asked_twice.wait();
      allreduce(torch::zeros({1}), {.name = "w"});
    }
    synchronize(first);
    EXPECT_EQ(synchronize(good).item<double>(), 3);
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({1}, at::kLong)); }), HasSubstr("Use Op::sum"));
    EXPECT_THAT(error_of([] { broadcast(torch::zeros({1}), 2); }), HasSubstr("from rank 2, but there are 2 ranks"));
    EXPECT_THAT(error_of([] { alltoall(torch::zeros({3})); }), HasSubstr("do not divide by 2 ranks"));
    EXPECT_THAT(error_of([] { alltoall(torch::zeros({3}), {1, 1}); }),
                HasSubstr("with the tensor's rows as their sum"));
    if (rank() == 0) { // refused here alone: it takes no number
      EXPECT_THAT(error_of([] { alltoall(torch::zeros({3})); }), HasSubstr("alltoall without a name"));
    }
    EXPECT_EQ(alltoall(torch::zeros({4})).first.size(0), 4);
    EXPECT_THAT(error_of([] { broadcast_(at::Tensor(), 0); }), HasSubstr("undefined"));
    EXPECT_THAT(error_of([] { allreduce(torch::eye(3).to_sparse()); }), HasSubstr("sparse"));
    EXPECT_THAT(error_of([] { allgather(torch::zeros({})); }), HasSubstr("without dims"));
    EXPECT_THAT(error_of([] { allreduce(at::Tensor()); }), HasSubstr("undefined"));
    barrier();
  });
}

TEST(HorovodErrorTest, ARankThatEndsIsNamed) {
  on_ranks(3, [](comm::World& world) {
    init(world);
    if (rank() == 1) {
      shutdown();
      return;
    }
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({1})); }), HasSubstr("rank 1 has shut Horovod down"));
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({1})); }), HasSubstr("rank 1 has shut Horovod down"))
        << "and later";
    shutdown();
  });
}

TEST(HorovodErrorTest, AStallEndsWhereAsked) {
  ::setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1", 1);
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({1}), {.name = concat("only rank ", rank())}); }),
                HasSubstr("has waited for other ranks for more than 1 s"));
  });
  ::unsetenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
}

TEST(HorovodErrorTest, ACycleTimeThatIsNoNumber) {
  for (const auto& [value, said] : {std::pair{"0.5", "no Error"}, std::pair{"often", "HOROVOD_CYCLE_TIME is \"often\""},
                                    std::pair{"-1", "HOROVOD_CYCLE_TIME is \"-1\""}}) {
    ::setenv("HOROVOD_CYCLE_TIME", value, 1);
    on_ranks(2, [said = said](comm::World& world) {
      EXPECT_THAT(error_of([&] {
                    const Job job(world);
                    allreduce(torch::ones({1}));
                  }),
                  HasSubstr(said));
    });
  }
  ::unsetenv("HOROVOD_CYCLE_TIME");
}

TEST(HorovodTimelineTest, TheVariableIsRankZeros) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_horovod_", ::getpid());
  std::filesystem::create_directories(folder);
  on_ranks(2, [&](comm::World& world) {
    ::setenv("HOROVOD_TIMELINE", (folder / concat(world.rank(), ".json")).c_str(), 1);
    const Job job(world);
    allreduce(torch::zeros({3}));
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "0.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "1.json"));
  std::filesystem::remove_all(folder);
}

TEST(HorovodTimelineTest, HasNegotiationAndOperationOfEachTensor) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / concat("trireme_horovod_", ::getpid(), ".json");
  on_ranks(2, [&](comm::World& world) {
    const Job job(world);
    if (rank() == 0) {
      start_timeline(file);
    }
    allreduce(torch::zeros({3}), {.name = "weight"});
    allgather(torch::zeros({3}), "rows");
    if (rank() == 0) {
      stop_timeline();
      std::ifstream stream(file);
      const nlohmann::json trace = nlohmann::json::parse(stream);
      std::set<std::string> names;
      for (const auto& event : trace.at("traceEvents")) {
        names.insert(event.at("name"));
      }
      for (const char* const name :
           {"NEGOTIATE_ALLREDUCE weight", "ALLREDUCE weight", "NEGOTIATE_ALLGATHER rows", "ALLGATHER rows"}) {
        EXPECT_EQ(names.count(name), 1U) << name;
      }
    }
  });
  std::filesystem::remove(file);
}

TEST(AdasumTest, AddsWhatIsPerpendicularAndAveragesWhatIsTheSame) {
  const at::Tensor a = torch::tensor({3.0, 0.0}, at::kDouble), b = torch::tensor({0.0, 4.0}, at::kDouble);
  EXPECT_TRUE(adasum_of(a, b).equal(a + b));
  EXPECT_TRUE(adasum_of(a, a).equal(a));
  EXPECT_TRUE(adasum_of(a, torch::zeros({2}, at::kDouble)).equal(a));
  EXPECT_TRUE(adasum_of(a, -a).equal(torch::zeros({2}, at::kDouble)));
}

TEST(AdasumTest, PairsOfNeighboursFirst) {
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [](comm::World& world) {
      const Job job(world);
      for (const double offset : {0.0, 1.0}) {
        at::Tensor expected = of_rank(0, {3, 4}, offset);
        if (size() > 1) {
          expected = adasum_of(expected, of_rank(1, {3, 4}, offset));
        }
        if (size() > 2) {
          expected = adasum_of(expected, adasum_of(of_rank(2, {3, 4}, offset), of_rank(3, {3, 4}, offset)));
        }
        EXPECT_TRUE(allreduce(of_rank(rank(), {3, 4}, offset), {.op = Op::adasum}).equal(expected));
      }
    });
  }
  on_ranks(3, [](comm::World& world) {
    const Job job(world);
    EXPECT_THAT(error_of([] { allreduce(torch::zeros({1}), {.op = Op::adasum}); }), HasSubstr("power of two"));
  });
}

} // namespace
} // namespace trireme::horovod
