// The staged backend on the simulated device: what tests/comm/staged_test.cpp asks of it, and the order of streams.
#include "sim_device.h"

#include <tests/comm/staged_checks.h>

#include <trireme/device/stream.h>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using testing::IsEmpty;

void expect_no_problems(const char* what) {
  EXPECT_THAT(sim::problems(), IsEmpty()) << what;
  sim::clear_problems();
}

std::vector<std::string> on_device(const std::string& host, int ranks, const std::function<void(StagedRank&)>& body) {
  const at::Device device(c10::kPrivateUse1, 0);
  return run_staged(ranks, host, device, body, std::chrono::seconds(30), [] {
    sim::start();
    sim::set_polls(2); // events are not ready at once
  });
}

class SimDeviceStagedTest : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static std::vector<std::string> run(const std::function<void(StagedRank&)>& body) {
    return on_device(std::get<0>(GetParam()), std::get<1>(GetParam()), [&](StagedRank& peer) {
      body(peer);
      expect_no_problems("after it");
    });
  }
};

TEST_P(SimDeviceStagedTest, EveryOperationEqualsTheHosts) {
  EXPECT_THAT(run([](StagedRank& peer) {
                for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kInt64}) {
                  equal_the_host(peer, type, std::string(peer.direct->name()) == "shm");
                }
              }),
              IsEmpty());
}

TEST_P(SimDeviceStagedTest, Messages) {
  EXPECT_THAT(run([](StagedRank& peer) {
                messages_in_crossing_orders(peer);
                later_message_first(peer);
              }),
              IsEmpty());
}

TEST_P(SimDeviceStagedTest, ManyUnderWayAtOnce) {
  EXPECT_THAT(run([](StagedRank& peer) { many_under_way(peer); }), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, SimDeviceStagedTest,
                         testing::Combine(testing::Values("shm", "gloo"), testing::Values(2, 3)), [](const auto& info) {
                           return concat(std::get<0>(info.param), std::get<1>(info.param), "Ranks");
                         });

// The caller waits on another stream than the one that the tensors were allocated on, and drops them: only
// record_stream() keeps their memory.
TEST(SimDeviceStreamsTest, MemoryLivesUntilTheCopiesAreDone) {
  EXPECT_THAT(on_device("shm", 2,
                        [](StagedRank& peer) {
                          const int other = 1 - peer.rank();
                          const auto fresh = [&](int64_t numel) {
                            return torch::ones({numel}, at::TensorOptions(peer.device));
                          };
                          device::KeptStreams streams;
                          const auto wait_elsewhere = [&](const std::shared_ptr<Pending>& pending) {
                            const device::OnStream on(streams.on(peer.device));
                            pending->wait();
                          };
                          {
                            const at::Tensor tensor = fresh(20'000);
                            wait_elsewhere(peer.staged->all_reduce(tensor, ReduceOp::sum));
                          }
                          expect_no_problems("all_reduce");
                          {
                            const at::Tensor part = fresh(10'000);
                            const at::Tensor whole = fresh(20'000);
                            wait_elsewhere(peer.staged->reduce_scatter(part, whole, ReduceOp::sum));
                          }
                          expect_no_problems("reduce_scatter");
                          {
                            const at::Tensor sent = fresh(20'000);
                            const at::Tensor received = fresh(20'000);
                            const auto send = peer.staged->send(sent, other, 0);
                            wait_elsewhere(peer.staged->recv(received, other, 0));
                            wait_elsewhere(send);
                          }
                          expect_no_problems("messages");
                        }),
              IsEmpty());
}

// The host's next message goes into other pinned memory while the last one is copied to the device.
TEST(SimDeviceStreamsTest, MessagesDoNotShareMemoryThatIsStillCopied) {
  EXPECT_THAT(on_device("shm", 2,
                        [](StagedRank& peer) {
                          const int other = 1 - peer.rank();
                          for (int i = 0; i < 3; ++i) {
                            const at::Tensor sent =
                                torch::full({20'000}, 1.0 + i, at::TensorOptions(at::kFloat).device(peer.device));
                            const at::Tensor received = torch::empty({20'000}, at::TensorOptions(peer.device));
                            const auto receive = peer.staged->recv(received, other, 0);
                            const auto send = peer.staged->send(sent, other, 0);
                            complete(receive);
                            complete(send);
                          }
                          expect_no_problems("messages in a row");
                        }),
              IsEmpty());
}

// A kernel that still reads the tensor comes before the copy back, one that writes it after the copy to the host.
TEST(SimDeviceStreamsTest, KernelsBeforeAndAfterAreOrdered) {
  EXPECT_THAT(on_device("shm", 2,
                        [](StagedRank& peer) {
                          const int other = 1 - peer.rank();
                          at::Tensor tensor = torch::ones({20'000}, at::TensorOptions(peer.device));
                          tensor.sum();
                          complete(peer.staged->broadcast(tensor, 0));
                          tensor.mul_(3);
                          const auto send = peer.staged->send(tensor, other, 0);
                          at::Tensor received = torch::ones({20'000}, at::TensorOptions(peer.device));
                          received.sum();
                          complete(peer.staged->recv(received, other, 0));
                          complete(send);
                          tensor.zero_();
                          EXPECT_EQ(received.sum().item<float>(), 60'000);
                          expect_no_problems("order");
                        }),
              IsEmpty());
}

} // namespace
} // namespace trireme::comm
