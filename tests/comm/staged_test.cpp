// Tensors of a device through host memory, on CPU tensors: the threads, the pieces and the errors; devices' own order
// is tested with a device.
#include "tests/comm/staged_checks.h"

#include "tests/support/peer_error.h"

#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>
#include <thread>

namespace trireme::comm {
namespace {

using test::error_of;
using test::peer_error;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const at::Device kDevice(at::kCPU);

class StagedTest : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static std::vector<std::string> run(const std::function<void(StagedRank&)>& body) {
    return run_staged(std::get<1>(GetParam()), std::get<0>(GetParam()), kDevice, body);
  }
};

TEST_P(StagedTest, EveryOperationEqualsTheHosts) {
  EXPECT_THAT(run([](StagedRank& peer) {
                EXPECT_STREQ(peer.staged->name(), "staged");
                const bool same_order = std::string(peer.direct->name()) == "shm";
                for (const auto type :
                     {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kHalf, torch::kInt64, torch::kUInt8}) {
                  equal_the_host(peer, type, same_order);
                }
              }),
              IsEmpty());
}

TEST_P(StagedTest, MessagesInCrossingOrders) {
  EXPECT_THAT(run([](StagedRank& peer) { messages_in_crossing_orders(peer); }), IsEmpty());
}

TEST_P(StagedTest, ALaterMessageMayBeTakenFirst) {
  EXPECT_THAT(run_staged(
                  std::get<1>(GetParam()), std::get<0>(GetParam()), kDevice,
                  [](StagedRank& peer) { later_message_first(peer); }, std::chrono::seconds(5)),
              IsEmpty());
}

TEST_P(StagedTest, ManyUnderWayAtOnce) {
  EXPECT_THAT(run([](StagedRank& peer) { many_under_way(peer); }), IsEmpty());
}

TEST_P(StagedTest, SendsTheBytesOfItsHost) {
  EXPECT_THAT(run([](StagedRank& peer) {
                const int size = peer.size();
                for (Backend* backend : {peer.direct.get(), peer.staged.get()}) {
                  at::Tensor whole = torch::zeros({size * 20'011});
                  at::Tensor other = torch::zeros_like(whole);
                  at::Tensor part = torch::zeros({20'011});
                  complete(backend->all_reduce(whole, ReduceOp::sum));
                  complete(backend->reduce_scatter(part, whole, ReduceOp::sum));
                  complete(backend->all_gather(whole, part));
                  complete(backend->broadcast(whole, 1));
                  complete(backend->all_to_all(other, whole));
                  const auto send = backend->send(whole, (peer.rank() + 1) % size, 0);
                  complete(backend->recv(other, (peer.rank() + size - 1) % size, 0));
                  complete(send);
                }
                EXPECT_EQ(peer.staged->bytes_sent(), peer.direct->bytes_sent());
                EXPECT_GT(peer.staged->bytes_sent(), 0);
              }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, StagedTest, testing::Combine(testing::Values("shm", "gloo"), testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), std::get<1>(info.param), "Ranks");
                         });

/// Where ranks write what they know of a hang.
class DumpFolder {
 public:
  DumpFolder() {
    std::filesystem::create_directories(folder_);
    setenv("TRIREME_RUN_DIR", folder_.c_str(), 1);
  }
  ~DumpFolder() {
    unsetenv("TRIREME_RUN_DIR");
    std::filesystem::remove_all(folder_);
  }
  DumpFolder(const DumpFolder&) = delete;
  DumpFolder& operator=(const DumpFolder&) = delete;

 private:
  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / concat("trireme_staged_", getpid());
};

/// What happens when a rank does not come.
class StagedTroubleTest : public testing::TestWithParam<const char*> {
 private:
  DumpFolder dumps_;
};

TEST_P(StagedTroubleTest, WhoDoesNotComeIsNamed) {
  EXPECT_THAT(run_staged(
                  2, GetParam(), kDevice,
                  [](StagedRank& peer) {
                    const Group group = peer.group();
                    at::Tensor tensor = torch::ones({100'000});
                    group.all_reduce(tensor, ReduceOp::sum, "warm").wait();
                    if (peer.rank() == 0) {
                      EXPECT_THAT(peer_error([&] { group.all_reduce(tensor, ReduceOp::sum, "bucket 7").wait(); }),
                                  AllOf(HasSubstr("all_reduce #2 (\"bucket 7\""), HasSubstr("rank 1 has not come")));
                      EXPECT_THAT(peer_error([&] { group.all_reduce(tensor); }), HasSubstr("failed before"));
                    } else {
                      std::this_thread::sleep_for(std::chrono::seconds(4));
                    }
                  },
                  std::chrono::seconds(2)),
              IsEmpty());
}

TEST_P(StagedTroubleTest, ADeadPeerIsNamed) {
  EXPECT_THAT(run_staged(2, GetParam(), kDevice,
                         [](StagedRank& peer) {
                           const Group group = peer.group();
                           at::Tensor tensor = torch::ones({100'000});
                           group.all_reduce(tensor, ReduceOp::sum, "warm").wait();
                           if (peer.rank() == 1) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(500));
                             _exit(3);
                           }
                           const Work receive = group.recv(torch::ones({10}), 1, 5, "acts");
                           EXPECT_THAT(peer_error([&] { group.all_reduce(tensor, ReduceOp::sum, "bucket 7").wait(); }),
                                       AllOf(HasSubstr("bucket 7"), HasSubstr("rank 1")));
                         }),
              ElementsAre(HasSubstr("rank 1")));
}

TEST_P(StagedTroubleTest, InterruptEndsWhatIsWaitedFor) {
  EXPECT_THAT(run_staged(2, GetParam(), kDevice,
                         [](StagedRank& peer) {
                           if (peer.rank() == 1) {
                             std::this_thread::sleep_for(std::chrono::seconds(1));
                             return;
                           }
                           const auto receive = peer.staged->recv(torch::ones({10}), 1, 5);
                           const auto sum = peer.staged->all_reduce(torch::ones({50'000}), ReduceOp::sum);
                           const auto next = peer.staged->all_reduce(torch::ones({50'000}), ReduceOp::sum);
                           EXPECT_FALSE(receive->done());
                           EXPECT_FALSE(sum->done());
                           std::thread interrupter([&] {
                             std::this_thread::sleep_for(std::chrono::milliseconds(50));
                             peer.staged->interrupt();
                           });
                           for (const auto& pending : {sum, receive, next}) {
                             for (int time = 0; time < 2; ++time) {
                               try {
                                 pending->wait();
                                 ADD_FAILURE() << "nobody came";
                               } catch (const Trouble& trouble) {
                                 EXPECT_EQ(trouble.kind, Trouble::Kind::interrupted) << trouble.happened;
                               }
                             }
                             EXPECT_TRUE(pending->done());
                           }
                           interrupter.join();
                         }),
              IsEmpty());
}

TEST_P(StagedTroubleTest, ClosingEndsWhatIsUnderWay) {
  EXPECT_THAT(run_staged(2, GetParam(), kDevice,
                         [](StagedRank& peer) {
                           if (peer.rank() == 1) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(500));
                             return;
                           }
                           auto sum = peer.staged->all_reduce(torch::ones({500'000}), ReduceOp::sum);
                           const auto next = peer.staged->all_reduce(torch::ones({50'000}), ReduceOp::sum);
                           const auto receive = peer.staged->recv(torch::ones({10}), 1, 5);
                           const auto send = peer.staged->send(torch::ones({5'000'000}), 1, 5);
                           peer.staged->close();
                           sum.reset();
                           EXPECT_THROW(next->wait(), Trouble);
                           EXPECT_THROW(receive->wait(), Trouble);
                           EXPECT_THROW(peer.staged->all_reduce(torch::ones({1}), ReduceOp::sum), Trouble);
                           EXPECT_THROW(peer.staged->send(torch::ones({1}), 1, 0), Trouble);
                           EXPECT_THROW(peer.staged->recv(torch::ones({1}), 1, 0), Trouble);
                           peer.staged->close();
                         }),
              IsEmpty());
}

TEST_P(StagedTroubleTest, ATypeThatNobodyAddsIsRefusedAndTheGroupGoesOn) {
  EXPECT_THAT(run_staged(2, GetParam(), kDevice,
                         [](StagedRank& peer) {
                           EXPECT_THAT(error_of([&] {
                                         peer.staged->all_reduce(torch::zeros({3}, torch::kBool), ReduceOp::sum);
                                       }),
                                       HasSubstr("all_reduce"));
                           at::Tensor tensor = torch::ones({3});
                           complete(peer.staged->all_reduce(tensor, ReduceOp::sum));
                           expect_bits(tensor, torch::full({3}, 2.0F), "after it");
                         }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, StagedTroubleTest, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

std::vector<std::string> run_world(const std::string& backend, std::chrono::milliseconds timeout,
                                   const std::function<void(World&)>& body) {
  test::RunOptions options;
  options.backend = backend;
  options.timeout = timeout;
  return test::run_ranks(2, body, options);
}

TEST(StagedWorldTest, DevicesWithoutABackendOfTheirOwnAreOpenedOverTheHosts) {
  for (const char* backend : {"auto", "staged", "gloo"}) {
    EXPECT_THAT(
        run_world(backend, std::chrono::seconds(30),
                  [backend](World& world) {
                    const Group& group = world.group();
                    EXPECT_STREQ(group.backend(), std::string(backend) == "gloo" ? "gloo" : "shm");
                    group.open(at::kCPU);
                    group.open(at::Device(at::kPrivateUse1, 0)); // which moves nothing yet, so no such device is needed
                    group.open(at::Device(at::kPrivateUse1, 0));
                    const Group alone = world.subgroup({world.rank()}, "alone");
                    alone.open(at::kMeta);
                    EXPECT_THAT(error_of([&] { group.open(at::kMeta); }),
                                HasSubstr("no backend here moves tensors on meta"));
                    at::Tensor tensor = torch::ones({3});
                    group.all_reduce(tensor).wait();
                    expect_bits(tensor, torch::full({3}, 2.0F), "on the host");
                  }),
        IsEmpty())
        << backend;
  }
}

TEST(StagedWorldTest, WhoDoesNotOpenIsNamed) {
  const DumpFolder dumps;
  EXPECT_THAT(run_world("auto", std::chrono::seconds(2),
                        [](World& world) {
                          if (world.rank() == 0) {
                            EXPECT_THAT(peer_error([&] { world.group().open(at::Device(at::kPrivateUse1, 0)); }),
                                        AllOf(HasSubstr("open #1"), HasSubstr("rank 1 has not come")));
                          } else {
                            std::this_thread::sleep_for(std::chrono::seconds(4));
                          }
                        }),
              IsEmpty());
}

} // namespace
} // namespace trireme::comm
