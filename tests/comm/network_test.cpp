#include <trireme/base/file.h>
#include <trireme/comm/world.h>
#include <trireme/store/sockets.h>

#include "tests/comm/listening.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/two_hosts.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using trireme::test::TwoHosts;

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = TwoHosts::missing()) {
      GTEST_SKIP() << *why << "; nothing between hosts is tested";
    }
    hosts_ = std::make_unique<TwoHosts>();
  }

  /// Two ranks on each host.
  std::vector<std::string> run(
      const std::string& backend, const std::function<void(World&)>& body,
      std::chrono::milliseconds timeout = std::chrono::seconds(60),
      const std::function<void(int rank)>& before = [](int) {}) {
    trireme::test::RunOptions options;
    options.backend = backend;
    options.hosts = 2;
    return trireme::test::run_processes(
        4,
        [&](int rank) {
          hosts_->enter(rank / 2);
          before(rank);
          unsetenv("TRIREME_LISTEN_FD");
          setenv("MASTER_ADDR", hosts_->address(0).c_str(), 1);
          setenv("MASTER_PORT", "29500", 1);
          WorldOptions world_options;
          world_options.timeout = timeout;
          World world = World::connect(world_options);
          body(world);
        },
        options);
  }

  std::unique_ptr<TwoHosts> hosts_; // the ranks are forked: only this process deletes them
};

/// Two hosts of two ranks: a flat ring sends 2P(N-1)/N = 1.5 P over the cable in each direction, two levels
/// 2P(H-1)/H = P.
TEST_F(NetworkTest, TwoLevelsSendTwoThirdsOfAFlatRing) {
  constexpr int64_t kBytes = 32 << 20;
  int64_t sent[2] = {};
  int next = 0;
  for (const char* backend : {"auto", "gloo"}) {
    const int64_t before = hosts_->sent_bytes(0);
    EXPECT_THAT(run(backend,
                    [&](World& world) {
                      EXPECT_STREQ(world.group().backend(), std::string(backend) == "auto" ? "shm+gloo" : "gloo");
                      auto tensor = world.group().allocate(kBytes / 4, torch::kFloat32);
                      for (int round = 0; round < 2; ++round) {
                        tensor.fill_(world.rank() + 1);
                        world.group().all_reduce(tensor).wait();
                        EXPECT_EQ(tensor.min().item<float>(), 10);
                        EXPECT_EQ(tensor.max().item<float>(), 10);
                      }
                    }),
                IsEmpty());
    sent[next++] = hosts_->sent_bytes(0) - before;
  }
  const double two_levels = static_cast<double>(sent[0]) / (2 * kBytes);
  const double flat = static_cast<double>(sent[1]) / (2 * kBytes);
  std::printf(
      "bytes over the cable for every byte reduced: two levels %.3f (formula 1), flat ring %.3f (formula 1.5)\n",
      two_levels, flat);
  EXPECT_LT(two_levels, 1.06); // what headers add
  EXPECT_GT(flat, 1.45);
}

TEST_F(NetworkTest, ASlowCableIsSlowAndRight) {
  hosts_->limit("50mbit");
  EXPECT_THAT(run("auto",
                  [](World& world) {
                    auto tensor = torch::full({1'000'000}, world.rank() + 1.0F);
                    world.group().all_reduce(tensor).wait();
                    EXPECT_EQ(tensor.min().item<float>(), 10);
                    auto message = torch::full({10}, static_cast<float>(world.rank()));
                    auto got = torch::zeros({10});
                    auto sent = world.group().send(message, (world.rank() + 2) % 4);
                    world.group().recv(got, (world.rank() + 2) % 4).wait();
                    sent.wait();
                    EXPECT_EQ(got[0].item<float>(), (world.rank() + 2) % 4);
                  }),
              IsEmpty());
}

TEST_F(NetworkTest, ACableCutDuringAnAllReduceEndsInAnErrorThatNamesTheOtherHost) {
  for (const char* backend : {"auto", "gloo"}) {
    hosts_ = nullptr;
    hosts_ = std::make_unique<TwoHosts>();
    const auto lines = run(
        backend,
        [&](World& world) {
          auto tensor = torch::ones({2'000'000});
          world.group().all_reduce(tensor).wait();
          std::atomic<int> round = 0;
          std::thread cutter;
          if (world.rank() == 0) {
            cutter = std::thread([&] {
              while (round < 10) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
              }
              hosts_->cut();
            });
          }
          const std::string error = trireme::test::peer_error([&] {
            for (;; ++round) {
              world.group().all_reduce(tensor, ReduceOp::sum, "bucket").wait();
            }
          });
          round = 10;
          if (cutter.joinable()) {
            cutter.join();
          }
          EXPECT_THAT(error, HasSubstr("(\"bucket\""));
          // Seen from host 0, where the rendezvous is, the others are silent; those have lost the rendezvous.
          EXPECT_THAT(error, world.rank() < 2
                                 ? AnyOf(HasSubstr("rank 2"), HasSubstr("rank 3"), HasSubstr("ranks 2 and 3"))
                                 : AnyOf(HasSubstr("rank 0"), HasSubstr("ranks 0 and 1"), HasSubstr("rank 1")));
        },
        std::chrono::seconds(3));
    EXPECT_THAT(lines, IsEmpty()) << backend;
  }
}

/// The time-out is ten minutes, far beyond the deadline of this test: what ends the ranks is the silence of the other
/// host.
TEST_F(NetworkTest, ACutCableIsNoticedLongBeforeTheTimeout) {
  for (const bool unplugged : {false, true}) {
    SCOPED_TRACE(unplugged ? "interfaces down, ranks that only wait" : "packets lost, data on its way");
    hosts_ = nullptr;
    hosts_ = std::make_unique<TwoHosts>();
    const auto lines = run(
        unplugged ? "auto" : "gloo",
        [&](World& world) {
          auto tensor = torch::ones({2'000'000});
          world.group().all_reduce(tensor).wait();
          if (world.rank() == 0) {
            unplugged ? hosts_->unplug() : hosts_->cut();
          }
          const std::string error = trireme::test::peer_error([&] {
            if (unplugged) {
              world.group().recv(tensor, (world.rank() + 2) % 4).wait();
            } else {
              world.group().all_reduce(tensor, ReduceOp::sum, "bucket").wait();
            }
          });
          EXPECT_THAT(error, world.rank() < 2
                                 ? AnyOf(HasSubstr("rank 2"), HasSubstr("rank 3"), HasSubstr("ranks 2 and 3"))
                                 : AnyOf(HasSubstr("rank 0"), HasSubstr("ranks 0 and 1"), HasSubstr("rank 1")));
        },
        std::chrono::minutes(10));
    EXPECT_THAT(lines, IsEmpty());
  }
}

/// Every connection between hosts is probed while it is idle: those to the rendezvous, and those that gloo makes for
/// every group.
TEST(ConnectionsTest, AreAllProbed) {
  trireme::test::on_ranks(
      2,
      [](World& world) {
        const Group pair = world.subgroup({0, 1}, "pair");
        pair.barrier().wait();
        int connections = 0;
        for (int number = 0; number < 1024; ++number) {
          int protocol = 0;
          int listens = 0;
          socklen_t length = sizeof(protocol);
          if (getsockopt(number, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 || protocol != IPPROTO_TCP ||
              getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens != 0) {
            continue;
          }
          int probed = 0;
          int idle = 0;
          getsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &probed, &length);
          getsockopt(number, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &length);
          EXPECT_EQ(probed, 1);
          EXPECT_LT(idle, store::kSilence.count());
          ++connections;
        }
        EXPECT_GE(connections, 4) << "two to the rendezvous, and one for each group";
        world.group().barrier().wait();
      },
      {.backend = "gloo"});
}

/// Between hosts nobody but the user can hand a secret to all ranks.
TEST_F(NetworkTest, AJobWithoutASecretIsWarnedOf) {
  const std::string file = concat(testing::TempDir(), "trireme_secret_", getpid());
  write_file_atomically(file, std::string(32, 's'), 0600);
  for (const bool secret : {false, true}) {
    if (secret) {
      setenv("TRIREME_SECRET_FILE", file.c_str(), 1);
    }
    EXPECT_THAT(run(
                    "gloo",
                    [&](World& world) {
                      if (world.rank() == 0) {
                        const std::string said = testing::internal::GetCapturedStderr();
                        EXPECT_EQ(said.find("without a secret: any program that reaches that port can join the job") !=
                                      std::string::npos,
                                  !secret)
                            << said;
                      }
                      world.group().barrier().wait();
                    },
                    std::chrono::seconds(60),
                    [](int rank) {
                      if (rank == 0) {
                        testing::internal::CaptureStderr();
                      }
                    }),
                IsEmpty());
  }
  unsetenv("TRIREME_SECRET_FILE");
  std::filesystem::remove(file);
}

TEST_F(NetworkTest, ListensOnTheAddressOfTheCableAndNowhereElse) {
  std::string hex[2];
  for (const int host : {0, 1}) {
    in_addr address{};
    ASSERT_EQ(inet_pton(AF_INET, hosts_->address(host).c_str(), &address), 1);
    char text[9];
    std::snprintf(text, sizeof(text), "%08X", address.s_addr);
    hex[host] = text;
  }
  for (const char* backend : {"auto", "gloo"}) {
    const auto lines = run(backend, [&](World& world) {
      // The socket of this test's parent is in another network and so not in this list.
      const auto listening = test::own_listening_sockets();
      EXPECT_THAT(listening, SizeIs(testing::Ge(world.rank() == 0 ? 1u : 0u)));
      EXPECT_THAT(listening, Each(Field(&test::Listening::address, hex[world.rank() / 2])));
      world.group().barrier().wait();
    });
    EXPECT_THAT(lines, IsEmpty()) << backend;
  }
}

} // namespace
} // namespace trireme::comm
