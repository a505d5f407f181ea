#include <trireme/parallel/pipeline/channel.h>

#include <trireme/base/error.h>
#include <trireme/comm/group_state.h>

#include <tests/support/run_ranks.h>

#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::ElementsAre;
using testing::HasSubstr;

// Rank 0 sends these one after the other, rank 1 compares.
void expect_transfer(const std::vector<Tensors>& messages) {
  on_ranks(2, [&](comm::World& world) {
    SendChannel out(world.group(), 1 - world.rank(), 7, "there");
    RecvChannel in(world.group(), 1 - world.rank(), 7, "back");
    for (size_t m = 0; m < messages.size(); ++m) {
      const auto number = static_cast<int64_t>(m);
      if (world.rank() == 0) {
        std::vector<bool> bits;
        for (size_t i = 0; i < messages[m].size(); ++i) {
          bits.push_back(i % 2 == 0);
        }
        out.send({number, messages[m], bits, 40 + m, m});
        continue;
      }
      const Message got = in.recv(number);
      EXPECT_EQ(got.fingerprint, 40 + m);
      EXPECT_EQ(got.received, m);
      ASSERT_EQ(got.tensors.size(), messages[m].size());
      for (size_t i = 0; i < got.tensors.size(); ++i) {
        const at::Tensor& sent = messages[m][i];
        ASSERT_EQ(got.tensors[i].defined(), sent.defined()) << "tensor " << i;
        if (sent.defined()) {
          EXPECT_EQ(got.tensors[i].scalar_type(), sent.scalar_type());
          EXPECT_TRUE(got.tensors[i].equal(sent)) << "message " << m << " tensor " << i;
          EXPECT_EQ(reinterpret_cast<uintptr_t>(got.tensors[i].data_ptr()) % 64, 0u);
        }
        EXPECT_EQ(got.requires_grad[i], i % 2 == 0);
      }
    }
    out.finish();
  });
}

TEST(ChannelTest, AnyTypesShapesAndNothingAtAll) {
  torch::manual_seed(1);
  const Tensors all = {
      torch::randn({3, 5}), torch::randint(0, 9, {4}), torch::rand({2, 3}) > 0.5, torch::randn({7}).to(at::kBFloat16),
      at::Tensor(),         torch::tensor(2.5),        torch::empty({0, 4}),      torch::randn({4, 6}).t()};
  expect_transfer({all, all, {all[0]}, all, {at::Tensor()}});
}

TEST(ChannelTest, ShapesThatChangeAllTheTime) {
  std::vector<Tensors> messages;
  for (int i = 1; i < 40; ++i) {
    messages.push_back({torch::full({1 + i % 5, 300 * (i / 7)}, i)});
  }
  for (int i = 0; i < 5; ++i) {
    messages.push_back({torch::full({2000}, i)});
  }
  expect_transfer(messages);
}

TEST(ChannelTest, ShapesThatChangeNowAndThen) {
  std::vector<Tensors> messages;
  for (const int64_t numel : {20'000, 20'000, 9'000, 9'000, 20'000, 20'000, 9'000, 9'000}) {
    messages.push_back({torch::full({numel}, static_cast<double>(messages.size()))});
  }
  expect_transfer(messages);
}

TEST(ChannelTest, BothDirectionsAtOnceAndMessagesAheadOfTheReceiver) {
  on_ranks(2, [](comm::World& world) {
    const int other = 1 - world.rank();
    SendChannel out(world.group(), other, world.rank(), "out");
    RecvChannel in(world.group(), other, other, "in");
    in.expect();
    for (int m = 0; m < 30; ++m) {
      out.send({m, {torch::full({20'000}, m + 100 * world.rank())}, {}, 0, in.received()});
    }
    Tensors kept;
    for (int m = 0; m < 30; ++m) {
      const Message message = in.recv(m);
      kept.push_back(message.tensors[0]); // not to be overwritten while it is held
      if (m + 1 < 30) {
        in.expect();
      }
    }
    for (int m = 0; m < 30; ++m) {
      EXPECT_TRUE(kept[m].eq(m + 100 * other).all().item<bool>()) << m;
    }
    out.finish();
  });
}

// Two ranks of this process. Messages wait in queues: on the host one for each tag, on a device one for all, as NCCL
// has it, whose receives are matched in the order in which they are begun.
struct Queues {
  std::map<int, std::deque<at::Tensor>> on_host;
  std::deque<int64_t> on_device; ///< bytes of each payload; such tensors have no memory
};

class Arriving : public comm::Pending {
 public:
  Arriving(std::deque<at::Tensor>& queue, at::Tensor tensor) : queue_(queue), tensor_(std::move(tensor)) {}
  void wait() override {
    if (!queue_.empty() && tensor_.defined()) {
      tensor_.copy_(queue_.front());
      queue_.pop_front();
      tensor_.reset();
    }
    EXPECT_FALSE(tensor_.defined()) << "nothing was sent";
  }
  bool done() override { return !tensor_.defined() || !queue_.empty(); }

 private:
  std::deque<at::Tensor>& queue_;
  at::Tensor tensor_;
};

class QueueBackend : public comm::Backend {
 public:
  QueueBackend(at::DeviceType type, int rank, Queues& queues) : Backend(rank, 2), type_(type), queues_(queues) {}
  const char* name() const override { return "queue"; }
  bool moves(at::DeviceType type) const override { return type == type_; }
  std::shared_ptr<comm::Pending> send(at::Tensor tensor, int, int tag) override {
    if (type_ == at::kCPU) {
      queues_.on_host[tag].push_back(tensor.clone());
    } else {
      queues_.on_device.push_back(tensor.numel());
    }
    return nullptr;
  }
  std::shared_ptr<comm::Pending> recv(at::Tensor tensor, int, int tag) override {
    if (type_ == at::kCPU) {
      return std::make_shared<Arriving>(queues_.on_host[tag], tensor);
    }
    EXPECT_FALSE(queues_.on_device.empty());
    EXPECT_EQ(queues_.on_device.front(), tensor.numel()) << "the payload of another channel";
    queues_.on_device.pop_front();
    return nullptr;
  }
  std::shared_ptr<comm::Pending> all_reduce(at::Tensor, comm::ReduceOp) override { return nullptr; }
  std::shared_ptr<comm::Pending> reduce_scatter(at::Tensor, at::Tensor, comm::ReduceOp) override { return nullptr; }
  std::shared_ptr<comm::Pending> all_gather(at::Tensor, at::Tensor) override { return nullptr; }
  std::shared_ptr<comm::Pending> broadcast(at::Tensor, int) override { return nullptr; }
  std::shared_ptr<comm::Pending> all_to_all(at::Tensor, at::Tensor) override { return nullptr; }
  std::shared_ptr<comm::Pending> barrier() override { return nullptr; }
  int64_t bytes_sent() const override { return 0; }
  void interrupt() override {}
  void close() override {}

 private:
  at::DeviceType type_;
  Queues& queues_;
};

comm::Group rank_with_a_device(int rank, Queues& queues) {
  auto routes = std::make_unique<comm::Routes>(
      std::make_shared<QueueBackend>(at::kCPU, rank, queues),
      std::map<at::DeviceType, comm::Routes::Open>{{at::kMeta, [rank, &queues](at::Device) {
                                                      return std::make_shared<QueueBackend>(at::kMeta, rank, queues);
                                                    }}});
  return comm::Group(std::make_shared<comm::Group::State>("pipe", "pipe/0", std::vector<int>{0, 1}, std::move(routes),
                                                          std::chrono::milliseconds(1000), nullptr, 2));
}

TEST(ChannelTest, OnADeviceHeadersGoByTheHostAndPayloadsNeedNoTags) {
  Queues queues;
  const comm::Group from = rank_with_a_device(0, queues);
  const comm::Group to = rank_with_a_device(1, queues);
  SendChannel first_out(from, 1, 0, "first", at::kMeta);
  SendChannel second_out(from, 1, 3, "second", at::kMeta);
  const auto inbox = std::make_shared<DeviceInbox>(to, 0, at::kMeta);
  RecvChannel first_in(to, 0, 0, "first", inbox);
  RecvChannel second_in(to, 0, 3, "second", inbox);
  const auto tensor = [](int64_t numel) { return torch::empty({numel}, torch::device(at::kMeta)); };
  second_in.expect();
  for (int m = 0; m < 4; ++m) {
    first_out.send({m, {tensor(100 + m / 2), at::Tensor(), tensor(3)}, {true, false, false}, 7, 0});
    second_out.send({m, {tensor(5)}, {false}, 8, 0});
  }
  EXPECT_EQ(queues.on_host.size(), 1u) << "one stream of headers";
  EXPECT_EQ(queues.on_host.begin()->second.size(), 8u + 3u) << "types and shapes come when they change";
  for (int m = 0; m < 4; ++m) { // the other way round than they were sent
    const Message second = second_in.recv(m);
    EXPECT_EQ(second.fingerprint, 8u);
    EXPECT_EQ(second.tensors.at(0).sizes(), at::IntArrayRef({5}));
  }
  for (int m = 0; m < 4; ++m) {
    const Message first = first_in.recv(m);
    EXPECT_EQ(first.fingerprint, 7u);
    EXPECT_THAT(first.requires_grad, ElementsAre(true, false, false));
    EXPECT_EQ(first.tensors.at(0).sizes(), at::IntArrayRef({100 + m / 2}));
    EXPECT_EQ(first.tensors.at(0).device().type(), at::kMeta);
    EXPECT_FALSE(first.tensors.at(1).defined());
  }
  EXPECT_TRUE(queues.on_device.empty());
  first_out.finish();
  second_out.finish();
}

TEST(ChannelTest, AnotherMicroBatchIsAnErrorThatNamesTheChannel) {
  const auto errors = run_ranks(2, [](comm::World& world) {
    if (world.rank() == 0) {
      SendChannel out(world.group(), 1, 0, "activations from stage 0 to stage 1");
      out.send({3, {torch::ones({2})}, {true}, 0, 0});
      out.finish();
    } else {
      RecvChannel in(world.group(), 0, 0, "activations from stage 0 to stage 1");
      in.recv(2);
    }
  });
  ASSERT_FALSE(errors.empty());
  EXPECT_THAT(errors.back(), testing::AllOf(HasSubstr("activations from stage 0 to stage 1"),
                                            HasSubstr("expected micro-batch 2"), HasSubstr("received micro-batch 3")));
}

TEST(MessageTest, RefusesWhatDoesNotFitAnAnnouncement) {
  EXPECT_THROW(Layout::of(Tensors(kMaxTensors + 1, torch::ones({1}))), InputError);
  std::vector<uint8_t> announcement(kAnnouncementBytes);
  const Layout wide = Layout::of(Tensors(60, torch::ones({1, 1, 1, 1, 1, 1, 1, 1, 1, 1})));
  EXPECT_THROW(wide.write(announcement.data()), InputError);
  const Layout fine = Layout::of({torch::ones({2, 3}), at::Tensor(), torch::ones({}, at::kBool)});
  fine.write(announcement.data());
  EXPECT_EQ(Layout::read(announcement.data(), 3), fine);
  EXPECT_EQ(fine.describe(), "[2, 3] Float, nothing, [] Bool");
}

} // namespace
} // namespace trireme::pipeline
