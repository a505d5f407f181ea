// Which backend moves a tensor: by where it lies.
#include <trireme/comm/backends.h>
#include <trireme/comm/group_state.h>

#include "tests/support/peer_error.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Writes down what it is asked to do, for tensors of one kind of device.
class NotingBackend : public Backend {
 public:
  NotingBackend(const char* name, at::DeviceType type, std::vector<std::string>& notes,
                std::shared_ptr<Pending> pending = nullptr)
      : Backend(0, 2), name_(name), type_(type), notes_(notes), pending_(std::move(pending)) {}

  const char* name() const override { return name_; }
  bool moves(at::DeviceType type) const override { return type == type_; }
  std::shared_ptr<Pending> all_reduce(at::Tensor, ReduceOp) override { return note("all_reduce"); }
  std::shared_ptr<Pending> reduce_scatter(at::Tensor, at::Tensor, ReduceOp) override { return note("reduce_scatter"); }
  std::shared_ptr<Pending> all_gather(at::Tensor, at::Tensor) override { return note("all_gather"); }
  std::shared_ptr<Pending> broadcast(at::Tensor, int) override { return note("broadcast"); }
  std::shared_ptr<Pending> all_to_all(at::Tensor, at::Tensor) override { return note("all_to_all"); }
  std::shared_ptr<Pending> send(at::Tensor, int, int) override { return note("send"); }
  std::shared_ptr<Pending> recv(at::Tensor, int, int) override { return note("recv"); }
  std::shared_ptr<Pending> barrier() override { return note("barrier"); }
  int64_t bytes_sent() const override { return 10; }
  void interrupt() override { note("interrupt"); }
  void close() override { note("close"); }

 private:
  std::shared_ptr<Pending> note(const char* what) {
    notes_.push_back(concat(name_, ' ', what));
    return pending_;
  }
  const char* name_;
  at::DeviceType type_;
  std::vector<std::string>& notes_;
  std::shared_ptr<Pending> pending_; // null: all is done at once
};

class RoutesTest : public testing::Test {
 protected:
  std::shared_ptr<Backend> make(const char* name, at::DeviceType type) {
    return std::make_shared<NotingBackend>(name, type, notes_);
  }
  std::shared_ptr<Group::State> state(Routes::Open open = nullptr) {
    std::map<at::DeviceType, Routes::Open> devices;
    if (open) {
      devices[at::kMeta] = std::move(open);
    }
    auto routes = std::make_unique<Routes>(make("host", at::kCPU), std::move(devices));
    return std::make_shared<Group::State>("g", "g", std::vector<int>{0, 1}, std::move(routes),
                                          std::chrono::milliseconds(1000), nullptr, 2);
  }
  static at::Tensor on(at::DeviceType type) { return torch::empty({4}, at::TensorOptions().device(type)); }

  std::vector<std::string> notes_;
};

TEST_F(RoutesTest, ATensorGoesOverTheBackendOfItsDevice) {
  const auto all = state([this](at::Device) {
    notes_.emplace_back("opened");
    return make("device", at::kMeta);
  });
  const Group group(all);
  group.all_reduce(on(at::kCPU)).wait();
  EXPECT_EQ(group.bytes_sent(), 10);
  group.all_reduce(on(at::kMeta)).wait();
  group.broadcast(on(at::kMeta), 0).wait();
  group.send(on(at::kMeta), 1).wait();
  group.send(on(at::kCPU), 1).wait();
  group.barrier().wait();
  EXPECT_THAT(notes_, ElementsAre("host all_reduce", "opened", "device all_reduce", "device broadcast", "device send",
                                  "host send", "host barrier"));
  EXPECT_EQ(group.bytes_sent(), 20);
  EXPECT_STREQ(group.backend(), "host");
  EXPECT_EQ(group.allocate(3, at::kHalf, at::kMeta).device().type(), at::kMeta);
  notes_.clear();
  all->interrupt();
  all->close();
  EXPECT_THAT(notes_, ElementsAre("host interrupt", "device interrupt", "host close", "device close"));
}

TEST_F(RoutesTest, WhatNobodyMovesIsRefusedWithoutOpeningAnything) {
  const Group group(state());
  EXPECT_THAT(error_of([&] { group.all_reduce(on(at::kMeta), ReduceOp::sum, "loss"); }),
              AllOf(HasSubstr("all_reduce \"loss\" in group \"g\": the tensor is on meta, which no backend here moves"),
                    HasSubstr("trireme doctor")));
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(RoutesTest, ADeviceThatCannotBeOpenedIsAFailureOfTheOperation) {
  const Group group(
      state([](at::Device) -> std::shared_ptr<Backend> { throw Trouble(Trouble::Kind::lost, "the card is gone"); }));
  EXPECT_THAT(error_of([&] { group.all_reduce(on(at::kMeta)); }), HasSubstr("the card is gone"));
}

// Its destructor waits. What is under way is kept for those who may still wait for it.
TEST_F(RoutesTest, AnOperationThatNobodyWaitsForIsNotUnderWayForEver) {
  class Slow final : public Pending {
   public:
    void wait() override {}
    bool done() override { return false; }
  };
  const auto all = state([this](at::Device) {
    return std::make_shared<NotingBackend>("device", at::kMeta, notes_, std::make_shared<Slow>());
  });
  const Group group(all);
  for (size_t i = 0; i < 3 * GroupProgress::kRecent; ++i) {
    group.all_reduce(on(at::kMeta));
  }
  EXPECT_EQ(all->progress().recent.size(), GroupProgress::kRecent);
  EXPECT_TRUE(all->progress().last()->done);
}

TEST_F(RoutesTest, InputAndOutputAreOnOneDevice) {
  const Group group(state([this](at::Device) { return make("device", at::kMeta); }));
  EXPECT_THAT(error_of([&] { group.all_to_all(on(at::kCPU), on(at::kMeta), "tokens"); }),
              HasSubstr("\"tokens\" in group \"g\": input and output are on different devices (meta, cpu)"));
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(RoutesTest, AGroupThatWasInterruptedOpensNothing) {
  const auto all = state([this](at::Device) { return make("device", at::kMeta); });
  const Group group(all);
  all->interrupt();
  EXPECT_THAT(error_of([&] { group.all_reduce(on(at::kMeta)); }), HasSubstr("interrupted"));
}

// A row as NCCL's, without NCCL.
const BackendEntry kOfCards{.name = "cards",
                            .description = "",
                            .device = at::kCUDA,
                            .available = nullptr,
                            .suits = nullptr,
                            .connect = nullptr,
                            .needs = "",
                            .card = [](at::Device device) { return concat("card", static_cast<int>(device.index())); }};
const BackendEntry kOfHosts{.name = "hosts",
                            .description = "",
                            .device = std::nullopt,
                            .available = nullptr,
                            .suits = nullptr,
                            .connect = nullptr};

TEST(SuitsAllTest, EachMemberNeedsTheBackendAndACardOfItsOwn) {
  const GroupSetup setup{
      .name = "data", .store = Store(nullptr), .rank = 0, .size = 3, .members = {2, 5, 7}, .hosts = {0, 0, 1}};
  const auto said = [](const BackendEntry& entry, int card) {
    return announcement(entry, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(card)));
  };
  EXPECT_EQ(said(kOfCards, 1), "cards card1");
  EXPECT_TRUE(suits_all(kOfCards, true, setup, {said(kOfCards, 0), said(kOfCards, 1), said(kOfCards, 0)}))
      << "the third is on another host";
  EXPECT_FALSE(suits_all(kOfCards, false, setup, {said(kOfCards, 1), said(kOfCards, 1), said(kOfCards, 0)}));
  EXPECT_FALSE(suits_all(kOfCards, false, setup, {said(kOfCards, 0), said(kOfHosts, 1), said(kOfCards, 0)}));
  EXPECT_TRUE(suits_all(kOfHosts, true, setup, {said(kOfHosts, 1), said(kOfHosts, 1), said(kOfHosts, 1)}));
  EXPECT_FALSE(suits_all(kOfHosts, true, setup, {said(kOfCards, 1), said(kOfHosts, 1), said(kOfHosts, 1)}))
      << "and goes through the host all the same";
}

TEST(SuitsAllTest, WhatWasAskedForByNameIsRefused) {
  const GroupSetup setup{
      .name = "data", .store = Store(nullptr), .rank = 0, .size = 2, .members = {2, 5}, .hosts = {0, 0}};
  EXPECT_THAT(
      error_of([&] { suits_all(kOfCards, true, setup, {"cards card1", "cards card1"}); }),
      AllOf(HasSubstr("group \"data\" cannot use cards, which was asked for: ranks 2 and 5 are on one GPU (card1)."),
            HasSubstr("Give each rank a GPU of its own")));
  EXPECT_THAT(error_of([&] { suits_all(kOfCards, true, setup, {"cards card1", "staged "}); }),
              HasSubstr("rank 5 does not use it"));
}

} // namespace
} // namespace trireme::comm
