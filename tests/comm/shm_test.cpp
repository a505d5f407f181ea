#include <trireme/comm/host_memory.h>
#include <trireme/comm/shm/arena.h>
#include <trireme/comm/world.h>

#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> run(int ranks, const std::function<void(World&)>& body,
                             std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  test::RunOptions options;
  options.backend = "shm";
  options.timeout = timeout;
  return test::run_ranks(ranks, body, options);
}

/// Small whole numbers that differ from rank to rank and from place to place.
at::Tensor numbers(int rank, int64_t numel, at::ScalarType type) {
  return (torch::arange(numel, torch::kInt64) % 7 + rank * 3 + 1).to(type);
}

/// Memory that all ranks map, or of this rank alone.
at::Tensor room(const Group& group, bool shared, int64_t numel, at::ScalarType type) {
  return shared ? group.allocate(numel, type).zero_() : torch::zeros({numel}, type);
}

at::Tensor room(const Group& group, bool shared, const at::Tensor& value) {
  return room(group, shared, value.numel(), value.scalar_type()).copy_(value);
}

void expect_equal(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  const auto different = (found != wanted).sum().item<int64_t>();
  EXPECT_TRUE(torch::equal(found, wanted)) << what << ": " << different << " of " << wanted.numel() << " differ";
}

struct Case {
  at::ScalarType type;
  int64_t numel;
  bool in_shared;
  bool out_shared;

  std::string text() const {
    return concat(c10::toString(type), " x ", numel, in_shared ? " shared" : " own", out_shared ? "/shared" : "/own");
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool in : {true, false}) {
    for (const bool out : {true, false}) {
      for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf, torch::kFloat64, torch::kInt64,
                              torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8}) {
        if (in != out && type != torch::kFloat32 && type != torch::kBFloat16) {
          continue; // where the memory lies does not depend on the type
        }
        for (const int64_t numel : {1, 17, 5003}) {
          all.push_back({type, numel, in, out});
        }
      }
      all.push_back({torch::kFloat32, 300'001, in, out}); // several steps
      all.push_back({torch::kBFloat16, 600'001, in, out});
    }
  }
  all.push_back({torch::kFloat32, 1'100'000, true, true}); // past the caches
  return all;
}

at::Tensor sum(int size, int64_t numel, at::ScalarType type) {
  at::Tensor total = numbers(0, numel, torch::kInt64);
  for (int rank = 1; rank < size; ++rank) {
    total += numbers(rank, numel, torch::kInt64);
  }
  return total.to(type);
}

void check_reductions(const Group& group, const Case& c) {
  const int size = group.size();
  const int rank = group.rank();
  auto tensor = room(group, c.in_shared, numbers(rank, c.numel, c.type));
  group.all_reduce(tensor).wait();
  expect_equal(tensor, sum(size, c.numel, c.type), "all_reduce " + c.text());
  tensor.copy_(numbers(rank, c.numel, c.type));
  group.all_reduce(tensor, ReduceOp::max).wait();
  expect_equal(tensor, numbers(size - 1, c.numel, c.type), "max " + c.text());

  const auto mine = [&](const at::Tensor& whole) { return whole.narrow(0, rank * c.numel, c.numel); };
  auto whole = room(group, c.in_shared, numbers(rank, c.numel * size, c.type));
  auto part = room(group, c.out_shared, c.numel, c.type);
  group.reduce_scatter(part, whole).wait();
  expect_equal(part, mine(sum(size, c.numel * size, c.type)), "reduce_scatter " + c.text());
  expect_equal(whole, numbers(rank, c.numel * size, c.type), "input of reduce_scatter " + c.text());
  group.reduce_scatter(part, whole, ReduceOp::min).wait();
  expect_equal(part, mine(numbers(0, c.numel * size, c.type)), "reduce_scatter min " + c.text());
  auto inside = mine(whole);
  group.reduce_scatter(inside, whole).wait();
  expect_equal(inside, mine(sum(size, c.numel * size, c.type)), "reduce_scatter in place " + c.text());
  group.all_gather(whole, inside).wait();
  expect_equal(whole, sum(size, c.numel * size, c.type), "all_gather in place " + c.text());
}

void check_copies(const Group& group, const Case& c) {
  const int size = group.size();
  const int rank = group.rank();
  auto in = room(group, c.in_shared, numbers(rank, c.numel, c.type));
  auto out = room(group, c.out_shared, c.numel * size, c.type);
  group.all_gather(out, in).wait();
  for (int from = 0; from < size; ++from) {
    expect_equal(out.narrow(0, from * c.numel, c.numel), numbers(from, c.numel, c.type), "all_gather " + c.text());
  }
  for (int root = 0; root < size; ++root) {
    in.copy_(numbers(rank + root, c.numel, c.type));
    group.broadcast(in, root).wait();
    expect_equal(in, numbers(2 * root, c.numel, c.type), "broadcast " + c.text());
  }
  auto many = room(group, c.in_shared, c.numel * size, c.type);
  for (int to = 0; to < size; ++to) {
    many.narrow(0, to * c.numel, c.numel).copy_(numbers(rank * size + to, c.numel, c.type));
  }
  group.all_to_all(out, many).wait();
  for (int from = 0; from < size; ++from) {
    expect_equal(out.narrow(0, from * c.numel, c.numel), numbers(from * size + rank, c.numel, c.type),
                 "all_to_all " + c.text());
  }
  group.barrier().wait();
}

void check_messages(const Group& group, const Case& c) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  auto out = room(group, c.in_shared, numbers(group.rank(), c.numel, c.type));
  auto in = room(group, c.out_shared, c.numel, c.type);
  auto sent = group.send(out, next, 3);
  group.recv(in, previous, 3).wait();
  sent.wait();
  expect_equal(in, numbers(previous, c.numel, c.type), "message " + c.text());
}

class ShmTest : public testing::TestWithParam<int> {};

TEST_P(ShmTest, EqualsTheFormula) {
  EXPECT_THAT(run(GetParam(),
                  [](World& world) {
                    for (const Case& c : cases()) {
                      check_reductions(world.group(), c);
                      check_copies(world.group(), c);
                      check_messages(world.group(), c);
                    }
                  }),
              IsEmpty());
}

TEST_P(ShmTest, RanksMayHaveTheirMemoryInDifferentPlaces) {
  EXPECT_THAT(run(GetParam(),
                  [](World& world) {
                    const bool shared = world.rank() % 2 == 0;
                    for (const int64_t numel : {5, 900'000}) {
                      check_reductions(world.group(), {torch::kFloat32, numel, shared, !shared});
                      check_copies(world.group(), {torch::kFloat32, numel, shared, !shared});
                    }
                  }),
              IsEmpty());
}

TEST_P(ShmTest, AddsInRankOrderWithTheSameBitsEverywhere) {
  EXPECT_THAT(run(GetParam(),
                  [](World& world) {
                    const Group& group = world.group();
                    for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
                      const auto value = [&](int rank) {
                        return (torch::arange(40'000, torch::kFloat32) * (rank + 1.7F)).sin().to(type);
                      };
                      auto wanted = value(0).to(torch::kFloat32);
                      for (int rank = 1; rank < group.size(); ++rank) {
                        wanted += value(rank).to(torch::kFloat32);
                      }
                      auto tensor = room(group, world.rank() != 1, value(group.rank()));
                      group.all_reduce(tensor).wait();
                      expect_equal(tensor, wanted.to(type), c10::toString(type));
                    }
                  }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmTest, testing::Values(2, 3, 4),
                         [](const auto& info) { return concat(info.param, "Ranks"); });

TEST(ShmGroupTest, IsWhatAutoChoosesOnOneHost) {
  test::on_ranks(2, [](World& world) { EXPECT_STREQ(world.group().backend(), "shm"); });
}

TEST(ShmGroupTest, ManyOperationsStayInOrder) {
  EXPECT_THAT(
      run(4,
          [](World& world) {
            // More steps than fit at once, in both kinds of memory, with messages in between.
            const Group& group = world.group();
            std::vector<at::Tensor> tensors;
            std::vector<Work> works;
            for (int index = 0; index < 300; ++index) {
              auto tensor =
                  room(group, index % 3 != 0, torch::full({1 + index * 97}, index + group.rank(), torch::kFloat32));
              works.push_back(group.all_reduce(tensor));
              tensors.push_back(tensor);
            }
            for (int index = 299; index >= 0; --index) {
              works[index].wait();
              expect_equal(tensors[index], torch::full({1 + index * 97}, 4.0F * index + 6, torch::kFloat32), "sum");
            }
          }),
      IsEmpty());
}

TEST(ShmGroupTest, AReceiverMayBeAnyNumberOfMessagesBehind) {
  test::Gate sent;
  EXPECT_THAT(run(2,
                  [&](World& world) {
                    const Group& group = world.group();
                    constexpr int kMessages = 1000;
                    std::vector<Work> works;
                    if (group.rank() == 0) {
                      for (int index = 0; index < kMessages; ++index) {
                        works.push_back(group.send(torch::full({index % 10 == 0 ? 9000 : 3}, index, torch::kFloat32), 1,
                                                   index % 2));
                      }
                      sent.open();
                      for (auto& work : works) {
                        work.wait();
                      }
                      return;
                    }
                    sent.wait();
                    for (const int odd : {1, 0}) { // all of tag 1 before the first of tag 0
                      for (int index = odd; index < kMessages; index += 2) {
                        auto tensor = torch::zeros({index % 10 == 0 ? 9000 : 3});
                        group.recv(tensor, 0, odd).wait();
                        EXPECT_EQ(tensor[-1].item<float>(), index);
                      }
                    }
                  }),
              IsEmpty());
}

TEST(ShmGroupTest, AReceiverInABarrierTakesTheLettersOfManySends) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    const Group& group = world.group();
                    constexpr int kMessages = 300; // more than a mailbox holds
                    for (int index = 0; index < kMessages && group.rank() == 0; ++index) {
                      group.send(torch::full({3}, index, torch::kFloat32), 1).wait();
                    }
                    group.barrier().wait();
                    for (int index = 0; index < kMessages && group.rank() == 1; ++index) {
                      auto tensor = torch::zeros({3});
                      group.recv(tensor, 0).wait();
                      EXPECT_EQ(tensor[2].item<float>(), index);
                    }
                  }),
              IsEmpty());
}

TEST(ShmGroupTest, MessagesWithOneTagGoToReceivesInOrder) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    const Group& group = world.group();
                    constexpr int kRounds = 2000;
                    constexpr int kReceives = 8; // that wait while letters come
                    int out_of_order = 0;
                    for (int round = 0; round < kRounds; ++round) {
                      const auto numbers = torch::arange(kReceives, torch::kFloat32).unsqueeze(1).contiguous();
                      const auto got = torch::full_like(numbers, -1);
                      std::vector<Work> works;
                      for (int index = 0; index < kReceives; ++index) {
                        works.push_back(group.rank() == 0 ? group.send(numbers[index], 1) : group.recv(got[index], 0));
                      }
                      for (auto& work : works) {
                        work.wait();
                      }
                      out_of_order += group.rank() == 1 && !got.equal(numbers) ? 1 : 0;
                    }
                    EXPECT_EQ(out_of_order, 0) << "rounds of " << kRounds;
                  }),
              IsEmpty());
}

TEST(ShmGroupTest, ARankThatComputesIsNotNeeded) {
  test::Gate done;
  EXPECT_THAT(run(2,
                  [&](World& world) {
                    const Group& group = world.group();
                    auto tensor = room(group, true, torch::full({1'000'000}, 1.0F));
                    auto work = group.all_reduce(tensor);
                    if (group.rank() == 0) {
                      work.wait();
                      done.open();
                    } else {
                      done.wait(); // posted, but busy otherwise
                    }
                    work.wait();
                    expect_equal(tensor, torch::full({1'000'000}, 2.0F), "sum");
                  }),
              IsEmpty());
}

TEST(ShmGroupTest, WaitingInOneGroupDoesTheWorkOfAnother) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    const Group first = world.subgroup({0, 1}, "first");
                    const Group second = world.subgroup({0, 1}, "second");
                    auto big = torch::full({3'000'000}, 1.0F); // own memory: every rank must do its copies itself
                    auto message = torch::zeros({1});
                    auto work = first.all_reduce(big);
                    if (world.rank() == 0) {
                      work.wait();
                      second.send(message.fill_(5), 1).wait();
                    } else {
                      second.recv(message, 0).wait();
                      EXPECT_EQ(message.item<float>(), 5);
                      work.wait();
                    }
                    expect_equal(big, torch::full({3'000'000}, 2.0F), "sum");
                  }),
              IsEmpty());
}

struct OfType {
  const char* op;
  std::function<void(const Group&, at::ScalarType)> call;
};

TEST(ShmGroupTest, AnotherTypeOfTheSameSizeIsRefused) {
  const std::vector<OfType> collectives = {
      {"all_gather",
       [](const Group& group, at::ScalarType type) {
         group.all_gather(torch::zeros({8}, type), torch::ones({4}, type)).wait();
       }},
      {"broadcast", [](const Group& group,
                       at::ScalarType type) { group.broadcast(torch::full({4}, group.rank(), type), 0).wait(); }},
      {"all_to_all",
       [](const Group& group, at::ScalarType type) {
         group.all_to_all(torch::zeros({4}, type), torch::ones({4}, type)).wait();
       }},
  };
  for (const OfType& collective : collectives) {
    EXPECT_THAT(run(2,
                    [&](World& world) {
                      const std::string error = test::peer_error(
                          [&] { collective.call(world.group(), world.rank() == 0 ? torch::kFloat32 : torch::kInt32); });
                      EXPECT_THAT(error, AllOf(HasSubstr(collective.op), HasSubstr("of Float"), HasSubstr("of Int")));
                    }),
                IsEmpty())
        << collective.op;
  }
  EXPECT_THAT(run(2,
                  [](World& world) {
                    const std::string error = test::peer_error([&] {
                      if (world.rank() == 0) {
                        world.group().send(torch::ones({4}, torch::kFloat32), 1).wait();
                        world.group().barrier().wait(); // gets the error
                      } else {
                        auto tensor = torch::zeros({4}, torch::kInt32);
                        world.group().recv(tensor, 0).wait();
                      }
                    });
                    EXPECT_THAT(error, HasSubstr("rank"));
                    if (world.rank() == 1) {
                      EXPECT_THAT(error,
                                  HasSubstr("a message of 16 bytes of Float came where 16 bytes of Int were expected"));
                    }
                  }),
              IsEmpty());
}

TEST(ShmGroupTest, WhatIsSeenOfPeersIsNotCountedAsOwn) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    constexpr int64_t kBytes = 32 << 20;
                    const int64_t before = own_shared_bytes();
                    auto tensor = world.group().allocate(kBytes / 4, torch::kFloat32).fill_(1);
                    for (int round = 0; round < 20; ++round) { // who does which piece is a matter of chance
                      EXPECT_NEAR(own_shared_bytes() - before, kBytes, 1 << 20) << round;
                      world.group().all_reduce(tensor).wait();
                    }
                    tensor = at::Tensor();
                    EXPECT_LE(own_shared_bytes() - before, 1 << 20) << "what is released goes back";
                  }),
              IsEmpty());
}

/// Memory files that a process has mapped have no name; what would be left behind lies here.
int64_t files_in_dev_shm() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    count += entry.path().filename().string().find("trireme") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(ShmFailureTest, AKilledRankIsNoticedAndLeavesNothing) {
  const int64_t before = files_in_dev_shm();
  for (const bool shared : {true, false}) {
    const auto lines = run(
        3,
        [shared](World& world) {
          auto tensor = room(world.group(), shared, torch::ones({3'000'000}));
          world.group().all_reduce(tensor).wait();
          std::atomic<int> round = 0;
          if (world.rank() == 1) {
            std::thread([&] {
              while (round < 10) {
                std::this_thread::yield();
              }
              raise(SIGKILL); // wherever the other thread is in its all-reduce
            }).detach();
          }
          const std::string error = test::peer_error([&] {
            for (;; ++round) {
              world.group().all_reduce(tensor, ReduceOp::sum, "bucket").wait();
            }
          });
          EXPECT_THAT(error,
                      AllOf(HasSubstr("(\"bucket\""), HasSubstr("rank 1"),
                            AnyOf(HasSubstr("not answer any more"), HasSubstr("has ended without closing its world"))));
        },
        std::chrono::minutes(10)); // no time-out: it was noticed
    EXPECT_THAT(lines, ElementsAre("rank 1: ended by signal 9 (Killed)"));
  }
  EXPECT_EQ(files_in_dev_shm(), before);
}

TEST(ArenaTest, GivesAndTakesBackMemory) {
  const auto lines = test::run_processes(1, [](int) {
    auto& arena = shm::Arena::process();
    auto* first = static_cast<std::byte*>(arena.allocate(100));
    auto* second = static_cast<std::byte*>(arena.allocate(size_t{8} << 20));
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 4096, 0U);
    EXPECT_TRUE(arena.contains(second, size_t{8} << 20));
    int outside = 0;
    EXPECT_FALSE(arena.contains(&outside, sizeof(outside)));
    second[0] = std::byte{1};
    arena.release(second);
    EXPECT_EQ(arena.allocate(size_t{8} << 20), second);
    EXPECT_EQ(second[0], std::byte{0}) << "the system has had it meanwhile";
    EXPECT_EQ(arena.allocate(size_t{1} << 50), nullptr);
    arena.release(first);
    EXPECT_EQ(arena.allocate(64), first);
  });
  EXPECT_THAT(lines, IsEmpty());
}

} // namespace
} // namespace trireme::comm
