#include <trireme/comm/world.h>

#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

// Small collectives over shared memory: who does them, and where they wait, differs from large ones.
namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> run_shm(int ranks, const std::function<void(World&)>& body,
                                 std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  test::RunOptions options;
  options.backend = "shm";
  options.timeout = timeout;
  return test::run_ranks(ranks, body, options);
}

/// Values whose sum depends on the order of the additions.
at::Tensor values(int rank, int64_t numel, at::ScalarType type) {
  const auto real = (torch::arange(numel, torch::kFloat64) * (rank + 1.7)).sin() * 90;
  return real.to(type);
}

at::Tensor place(const Group& group, bool shared, const at::Tensor& value) {
  return shared ? group.allocate(value.numel(), value.scalar_type()).copy_(value) : value.clone();
}

class ShmSmallTest : public testing::TestWithParam<int> {};

TEST_P(ShmSmallTest, GivesTheBitsOfLargeOnes) {
  EXPECT_THAT(
      run_shm(GetParam(),
              [](World& world) {
                const Group& group = world.group();
                for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf, torch::kFloat64, torch::kInt64,
                                        torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8}) {
                  const auto bytes = static_cast<int64_t>(c10::elementSize(type));
                  const int64_t most = (64 << 10) / bytes;
                  for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
                    auto large = place(group, true, values(group.rank(), (2 << 20) / bytes, type));
                    group.all_reduce(large, op).wait();
                    const int64_t small = (16 << 10) / bytes; // the largest that one rank adds alone
                    for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{63}, 4096 / bytes, small - 1, small,
                                                small + 1, most - 3, most}) {
                      for (const bool shared : {true, false}) {
                        auto tensor = place(group, shared, values(group.rank(), numel, type));
                        group.all_reduce(tensor, op).wait();
                        EXPECT_TRUE(torch::equal(tensor, large.narrow(0, 0, numel)))
                            << c10::toString(type) << " x " << numel << ' ' << shared;
                      }
                    }
                  }
                }
              }),
      IsEmpty());
}

TEST_P(ShmSmallTest, ManyInARowOfAllSizesStayApart) {
  EXPECT_THAT(run_shm(GetParam(),
                      [](World& world) {
                        const Group& group = world.group();
                        const float ranks = static_cast<float>(group.size());
                        auto own = torch::zeros({20'000});
                        auto shared = group.allocate(20'000, torch::kFloat32).zero_();
                        int wrong = 0;
                        for (int round = 0; round < 6000; ++round) {
                          const int64_t numel = round % 50 == 0 ? 20'000 : 1 + round * 37 % 1500;
                          auto part = (round % 3 == 0 ? own : shared).narrow(0, 0, numel);
                          part.fill_(static_cast<float>(round % 100 + group.rank()));
                          group.all_reduce(part).wait();
                          const float sum = ranks * static_cast<float>(round % 100) + ranks * (ranks - 1) / 2;
                          wrong += part.eq(sum).all().item<bool>() ? 0 : 1;
                          if (round % 7 == 0) {
                            group.barrier().wait();
                          }
                          if (round % 11 == 0) {
                            part.fill_(static_cast<float>(group.rank()));
                            group.broadcast(part, round % group.size()).wait();
                            wrong += part.eq(static_cast<float>(round % group.size())).all().item<bool>() ? 0 : 1;
                          }
                        }
                        EXPECT_EQ(wrong, 0);
                      }),
              IsEmpty());
}

TEST_P(ShmSmallTest, RanksOfDifferentSpeedWithManyUnderWay) {
  EXPECT_THAT(
      run_shm(
          GetParam(),
          [](World& world) {
            const Group& group = world.group();
            constexpr int kAtOnce = 100; // more than there are steps
            for (int slow = 0; slow < group.size(); ++slow) {
              std::vector<at::Tensor> tensors;
              std::vector<Work> works;
              for (int index = 0; index < kAtOnce; ++index) {
                if (group.rank() == slow && index % 20 == 0) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(2));
                }
                tensors.push_back(
                    place(group, index % 2 == 0, torch::full({1 + index * 13}, index + group.rank(), torch::kInt64)));
                works.push_back(group.all_reduce(tensors.back()));
              }
              int wrong = 0;
              for (int index = kAtOnce - 1; index >= 0; --index) {
                works[index].wait();
                wrong +=
                    tensors[index].eq(group.size() * index + group.size() * (group.size() - 1) / 2).all().item<bool>()
                        ? 0
                        : 1;
              }
              EXPECT_EQ(wrong, 0) << "rank " << slow << " is slow";
            }
          }),
      IsEmpty());
}

TEST_P(ShmSmallTest, RanksThatShareACoreComeForward) {
  EXPECT_THAT(run_shm(GetParam(),
                      [](World& world) {
                        cpu_set_t first;
                        ASSERT_EQ(sched_getaffinity(0, sizeof(first), &first), 0);
                        int core = 0;
                        while (!CPU_ISSET(core, &first)) {
                          ++core;
                        }
                        CPU_ZERO(&first);
                        CPU_SET(core, &first);
                        ASSERT_EQ(sched_setaffinity(0, sizeof(first), &first), 0);
                        auto tensor = world.group().allocate(1024, torch::kInt64).fill_(world.rank());
                        for (int round = 0; round < 2000; ++round) {
                          world.group().all_reduce(tensor, ReduceOp::max).wait();
                        }
                        EXPECT_TRUE(tensor.eq(world.size() - 1).all().item<bool>());
                      }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmSmallTest, testing::Values(2, 3),
                         [](const auto& info) { return concat(info.param, "Ranks"); });

TEST(ShmSmallGroupTest, RankZeroIsNotNeeded) {
  test::Gate done;
  EXPECT_THAT(run_shm(2,
                      [&](World& world) {
                        const Group& group = world.group();
                        auto tensor = group.allocate(1000, torch::kFloat32).fill_(1);
                        auto work = group.all_reduce(tensor);
                        if (group.rank() == 1) {
                          work.wait();
                          done.open();
                        } else {
                          done.wait(); // posted, but busy otherwise
                        }
                        work.wait();
                        EXPECT_TRUE(tensor.eq(2).all().item<bool>());
                      }),
              IsEmpty());
}

TEST(ShmSmallFailureTest, AKilledRankIsNamedWhoeverItIs) {
  for (const int victim : {0, 1, 2}) {
    const auto lines = run_shm(
        3,
        [victim](World& world) {
          auto tensor = world.group().allocate(1000, torch::kFloat32).fill_(0);
          std::atomic<int> round = 0;
          if (world.rank() == victim) {
            std::thread([&] {
              while (round < 500) {
                std::this_thread::yield();
              }
              raise(SIGKILL); // wherever the other thread is in its all-reduce
            }).detach();
          }
          const std::string error = test::peer_error([&] {
            for (;; ++round) {
              world.group().all_reduce(tensor, ReduceOp::sum, "loss").wait();
            }
          });
          EXPECT_THAT(error,
                      AllOf(HasSubstr("(\"loss\""), HasSubstr(concat("rank ", victim)),
                            AnyOf(HasSubstr("not answer any more"), HasSubstr("has ended without closing its world"))));
        },
        std::chrono::minutes(10)); // no time-out: it was noticed
    EXPECT_THAT(lines, ElementsAre(concat("rank ", victim, ": ended by signal 9 (Killed)")));
  }
}

} // namespace
} // namespace trireme::comm
