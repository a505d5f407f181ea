#include <trireme/parallel/pipeline/channel.h>

#include <trireme/base/error.h>

#include <tests/support/run_ranks.h>

#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using test::run_ranks;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Rank 0 sends these one after the other, rank 1 compares.
void expect_transfer(const std::vector<Tensors>& messages) {
  EXPECT_THAT(run_ranks(2,
                        [&](comm::World& world) {
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
                        }),
              IsEmpty());
}

TEST(ChannelTest, AnyTypesShapesAndNothingAtAll) {
  torch::manual_seed(1);
  const Tensors all = {torch::randn({3, 5}), torch::randint(0, 9, {4}), torch::rand({2, 3}) > 0.5, torch::randn({7}).to(at::kBFloat16),
                       at::Tensor(), torch::tensor(2.5), torch::empty({0, 4}), torch::randn({4, 6}).t()};
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
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
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
  EXPECT_THAT(errors.back(), testing::AllOf(HasSubstr("activations from stage 0 to stage 1"), HasSubstr("micro-batch 2 was expected"), HasSubstr("3 came")));
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
