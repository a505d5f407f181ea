// Shared memory where the system gives little of it, and what groups give back.
#include <trireme/comm/host_memory.h>
#include <trireme/comm/shm/arena.h>
#include <trireme/comm/shm/control_blocks.h>
#include <trireme/comm/world.h>

#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/torch.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <set>

namespace trireme::comm {
namespace {

using shm::Arena;
using shm::ControlBlocks;
using test::run_processes;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::set<int>> kWhoIsLimited = {{0}, {1}, {0, 1}};

void limit(decltype(RLIMIT_AS) resource, rlim_t bytes) {
  const rlimit limits{bytes, bytes};
  ASSERT_EQ(setrlimit(resource, &limits), 0);
}

/// As `ulimit -f 200000` does.
void limit_files() {
  limit(RLIMIT_FSIZE, rlim_t{200'000} * 1024);
}

/// As `ulimit -v` does: this process may map half the machine's memory more than it has mapped.
void limit_addresses() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto all = static_cast<rlim_t>(sysconf(_SC_PHYS_PAGES));
  limit(RLIMIT_AS, (pages + all / 2) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)));
}

void expect_gloo() {
  World world = World::connect();
  EXPECT_STREQ(world.group().backend(), "gloo");
  auto tensor = torch::ones({1000});
  world.group().all_reduce(tensor).wait();
  EXPECT_TRUE(torch::equal(tensor, torch::full({1000}, static_cast<float>(world.size()))));
}

TEST(ShmLimitsTest, WithALimitOnFilesAllRanksTakeGloo) {
  for (const auto& limited : kWhoIsLimited) {
    EXPECT_THAT(run_processes(2,
                              [&](int rank) {
                                if (limited.count(rank) != 0) {
                                  limit_files();
                                }
                                expect_gloo();
                              }),
                IsEmpty());
  }
}

TEST(ShmLimitsTest, WithALimitOnAddressesAllRanksTakeGloo) {
  for (const auto& limited : kWhoIsLimited) {
    EXPECT_THAT(run_processes(2,
                              [&](int rank) {
                                if (limited.count(rank) != 0) {
                                  limit_addresses();
                                }
                                expect_gloo();
                              }),
                IsEmpty());
  }
}

TEST(ShmLimitsTest, WhoAsksForSharedMemoryHearsOfTheLimit) {
  test::RunOptions options;
  options.backend = "shm";
  EXPECT_THAT(run_processes(
                  2,
                  [](int) {
                    limit_files();
                    World::connect();
                  },
                  options),
              ElementsAre(AllOf(HasSubstr("backend \"shm\" is not available here"), HasSubstr("ulimit -f")),
                          HasSubstr("ulimit -f")));
  EXPECT_THAT(
      run_processes(1,
                    [](int) {
                      limit_files();
                      Arena::process();
                    }),
      ElementsAre(AllOf(HasSubstr("cannot make shared memory: no file may be larger than 205 MB here (ulimit -f)"),
                        HasSubstr("TRIREME_BACKEND=gloo"))));
}

class ControlBlocksTest : public testing::TestWithParam<bool> {};

TEST_P(ControlBlocksTest, AreReleasedWhenAllHaveLeft) {
  const bool killed = GetParam();
  auto* gone = static_cast<std::atomic<int>*>(
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(gone, MAP_FAILED);
  test::RunOptions options;
  options.backend = "shm";
  const auto lines = run_processes(
      3,
      [killed, gone](int rank) {
        {
          World world = World::connect();
          const Group pair = world.subgroup({0, 1}, "pair");
          pair.barrier().wait();
          world.group().barrier().wait();
          EXPECT_TRUE(rank != 0 || Arena::process().allocated() > 0);
          if (killed && rank == 2) {
            raise(SIGKILL);
          }
          if (killed) {
            EXPECT_THAT(test::peer_error([&] { world.group().barrier().wait(); }), HasSubstr("rank 2"));
          }
        }
        ++*gone;
        while (rank == 0 && *gone < (killed ? 2 : 3)) {
          usleep(1000);
        }
        if (rank == 0) {
          ControlBlocks::process().sweep();
          EXPECT_EQ(Arena::process().allocated(), 0U);
        }
      },
      options);
  if (killed) {
    EXPECT_THAT(lines, ElementsAre("rank 2: ended by signal 9 (Killed)"));
  } else {
    EXPECT_THAT(lines, IsEmpty());
  }
  munmap(gone, sizeof(std::atomic<int>));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlBlocksTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "OneIsKilled" : "AllLeave"; });

TEST(ControlBlockTest, IsEmptyAndTakesMemoryOnlyWhereItIsTouched) {
  EXPECT_THAT(run_processes(1,
                            [](int) {
                              // Used memory in pieces so small that the system does not get it back.
                              constexpr size_t kPiece = size_t{1} << 20;
                              Arena& arena = Arena::process();
                              std::vector<void*> used;
                              for (int piece = 0; piece < 40; ++piece) {
                                used.push_back(arena.allocate(kPiece));
                                std::memset(used.back(), 0xff, kPiece);
                              }
                              for (void* piece : used) {
                                arena.release(piece);
                              }
                              const std::byte* block = ControlBlocks::process().make(64);
                              EXPECT_LT(own_shared_bytes(), 16 << 20) << "of 34 MB";
                              EXPECT_TRUE(std::all_of(block, block + shm::Control::bytes(64),
                                                      [](std::byte byte) { return byte == std::byte{0}; }));
                            }),
              IsEmpty());
}

} // namespace
} // namespace trireme::comm
