#include <trireme/comm/rendezvous.h>
#include <trireme/comm/world.h>
#include <trireme/store/sockets.h>

#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

namespace trireme::comm {
namespace {

using test::free_port;
using test::run_processes;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr std::chrono::milliseconds kSoon{3000};

void set(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
}

void meet_and_add(std::chrono::milliseconds timeout = kSoon) {
  WorldOptions options;
  options.timeout = timeout;
  World world = World::connect(options);
  auto one = torch::ones({1});
  world.group().all_reduce(one).wait();
  EXPECT_EQ(one.item<float>(), static_cast<float>(world.size()));
}

TEST(RendezvousTest, NamesTheRanksThatAreMissing) {
  EXPECT_THAT(
      run_processes(4,
                    [](int rank) {
                      if (rank % 2 == 0) {
                        meet_and_add();
                      }
                    }),
      UnorderedElementsAre(
          AllOf(HasSubstr("rank 0: [comm] ranks 1 and 3 have not come within 3.00 s; 2 of 4 ranks are connected."),
                HasSubstr("TRIREME_TIMEOUT")),
          AnyOf(HasSubstr("rank 2: [comm] ranks 1 and 3 have not come"), HasSubstr("rank 2: [comm] the rendezvous"))));
}

TEST(RendezvousTest, SaysThatRankZeroIsMissing) {
  const std::string port = std::to_string(free_port());
  EXPECT_THAT(
      run_processes(2,
                    [&](int rank) {
                      set("MASTER_PORT", port);
                      if (rank == 1) {
                        meet_and_add();
                      }
                    }),
      UnorderedElementsAre(HasSubstr("nobody listens on 127.0.0.1:" + port + " after 3.00 s, so rank 0 has not come")));
}

TEST(RendezvousTest, SaysThatThePortIsInUse) {
  const int occupied = store::listen_on({"127.0.0.1", 0});
  const std::string port = std::to_string(store::bound_port(occupied));
  EXPECT_THAT(run_processes(1,
                            [&](int) {
                              unsetenv("TRIREME_LISTEN_FD");
                              set("WORLD_SIZE", "2");
                              set("LOCAL_WORLD_SIZE", "2");
                              set("MASTER_PORT", port);
                              EXPECT_THROW(
                                  {
                                    try {
                                      meet_and_add();
                                    } catch (const InputError& error) {
                                      EXPECT_THAT(error.what(),
                                                  AllOf(HasSubstr("port " + port + " on 127.0.0.1 is in use"),
                                                        HasSubstr("MASTER_PORT")));
                                      EXPECT_EQ(error.exit_code(), 2);
                                      throw;
                                    }
                                  },
                                  InputError);
                            }),
              IsEmpty());
  close(occupied);
}

TEST(RendezvousTest, AStrangerWhoSaysNothingIsFoundOut) {
  const int stranger = store::listen_on({"127.0.0.1", 0});
  const std::string port = std::to_string(store::bound_port(stranger));
  EXPECT_THAT(
      run_processes(2,
                    [&](int rank) {
                      set("MASTER_PORT", port);
                      if (rank == 1) {
                        meet_and_add();
                      }
                    }),
      UnorderedElementsAre(HasSubstr("the program on 127.0.0.1:" + port + " is not the rendezvous of this job")));
  close(stranger);
}

TEST(RendezvousTest, TwoProcessesCannotBeTheSameRank) {
  test::Gate refused; // the two that have met stay until the third has come
  EXPECT_THAT(
      run_processes(3,
                    [&](int rank) {
                      set("WORLD_SIZE", "2");
                      set("LOCAL_WORLD_SIZE", "2");
                      set("LOCAL_RANK", rank == 0 ? "0" : "1");
                      set("RANK", rank == 0 ? "0" : "1");
                      try {
                        const World world = World::connect({.timeout = std::chrono::seconds(20)});
                        refused.wait();
                      } catch (const InputError&) {
                        refused.open(2);
                        throw;
                      }
                    }),
      UnorderedElementsAre(AllOf(HasSubstr("two processes claim to be rank 1 of 2"), HasSubstr("MASTER_PORT"))));
}

TEST(RendezvousTest, RanksMustAgreeOnTheWorldSize) {
  const auto lines = run_processes(2, [](int rank) {
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    if (rank == 1) {
      set("WORLD_SIZE", "3");
    }
    meet_and_add();
  });
  EXPECT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines,
              Each(AnyOf(HasSubstr("rank 1 has a world of 3 ranks, rank 0 one of 2"),
                         HasSubstr("rank 0 has a world of 2 ranks, rank 1 one of 3"), HasSubstr("the rendezvous"))));
}

TEST(RendezvousTest, FindsOutWhoIsOnThisHost) {
  EXPECT_THAT(run_processes(3,
                            [](int rank) {
                              unsetenv("LOCAL_WORLD_SIZE");
                              unsetenv("LOCAL_RANK");
                              World world = World::connect();
                              EXPECT_EQ(world.local_rank(), rank);
                              EXPECT_EQ(world.local_size(), 3);
                            }),
              IsEmpty());
}

TEST(RendezvousTest, RanksOfOneMpirunMeetOverAFile) {
  // As mpirun starts them: no address at all.
  const std::string folder = testing::TempDir() + "trireme-mpirun-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  EXPECT_THAT(run_processes(3,
                            [&](int rank) {
                              set("TMPDIR", folder);
                              for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                                       "MASTER_ADDR", "MASTER_PORT", "TRIREME_LISTEN_FD"}) {
                                unsetenv(name);
                              }
                              set("PMI_RANK", std::to_string(rank));
                              set("PMI_SIZE", "3");
                              set("MPI_LOCALRANKID", std::to_string(rank));
                              set("MPI_LOCALNRANKS", "3");
                              meet_and_add(std::chrono::seconds(20));
                            }),
              IsEmpty());
  const std::filesystem::path own = folder + "/trireme-" + std::to_string(getuid());
  EXPECT_EQ(std::filesystem::status(own).permissions(), std::filesystem::perms::owner_all) << "private";
  EXPECT_TRUE(std::filesystem::is_empty(own)) << "nothing is left behind";
  std::filesystem::remove_all(folder);
}

TEST(RendezvousTest, RefusesADescriptorThatIsNoSocket) {
  EXPECT_THAT(run_processes(1,
                            [](int) {
                              set("WORLD_SIZE", "2");
                              set("LOCAL_WORLD_SIZE", "2");
                              set("TRIREME_LISTEN_FD", "0");
                              meet_and_add();
                            }),
              UnorderedElementsAre(HasSubstr("TRIREME_LISTEN_FD=0 is not a listening socket")));
}

TEST(RendezvousTest, EnvironmentChoosesBackendAndTimeout) {
  EXPECT_THAT(run_processes(1,
                            [](int) {
                              const auto refused = [](const char* name, const char* value) {
                                set(name, value);
                                try {
                                  World::connect();
                                } catch (const InputError& error) {
                                  unsetenv(name);
                                  return std::string(error.what());
                                }
                                return std::string("no InputError");
                              };
                              EXPECT_THAT(refused("TRIREME_BACKEND", "glooo"),
                                          AllOf(HasSubstr("unknown backend \"glooo\""),
                                                HasSubstr(" Did you mean \"gloo\"? It comes from")));
                              EXPECT_THAT(refused("TRIREME_TIMEOUT", "soon"),
                                          HasSubstr("TRIREME_TIMEOUT must be a number of seconds"));
                              EXPECT_THAT(refused("TRIREME_TIMEOUT", "-1"), HasSubstr("TRIREME_TIMEOUT"));
                            }),
              IsEmpty());
}

TEST(RendezvousTest, AnotherWorldAfterTheFirst) {
  std::vector<int> ports;
  for (int turn = 0; turn < 4; ++turn) {
    ports.push_back(free_port());
  }
  EXPECT_THAT(run_processes(2,
                            [&](int) {
                              unsetenv("TRIREME_LISTEN_FD");
                              for (const int port : ports) {
                                set("MASTER_PORT", std::to_string(port));
                                meet_and_add(std::chrono::seconds(20));
                              }
                            }),
              IsEmpty());
}

TEST(SocketsTest, KnowsLoopbackAndOwnAddresses) {
  EXPECT_TRUE(store::is_loopback("localhost"));
  EXPECT_TRUE(store::is_loopback("127.0.1.1"));
  EXPECT_FALSE(store::is_loopback("10.0.0.1"));
  EXPECT_EQ(store::own_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_THROW(store::own_address_towards("no-such-host.invalid"), InputError);
  EXPECT_THROW(store::listen_on({"192.0.2.1", 0}), InputError) << "an address of nobody's";
}

} // namespace
} // namespace trireme::comm
