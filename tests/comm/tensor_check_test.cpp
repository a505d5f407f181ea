#include <trireme/comm/world.h>

#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using trireme::test::error_of;

TEST(NullGroupTest, AGroupOfOneDoesEverythingAtOnce) {
  const Group group;
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.rank(), 0);
  EXPECT_STREQ(group.backend(), "null");
  auto in = torch::arange(6, torch::kFloat32);
  auto out = torch::zeros({6});
  group.all_reduce(in).wait();
  group.reduce_scatter(out, in).wait();
  EXPECT_TRUE(torch::equal(out, in));
  out.zero_();
  group.all_gather(out, in).wait();
  EXPECT_TRUE(torch::equal(out, in));
  out.zero_();
  group.all_to_all(out, in).wait();
  EXPECT_TRUE(torch::equal(out, in));
  group.broadcast(in, 0).wait();
  EXPECT_TRUE(group.barrier().done());
  EXPECT_EQ(group.bytes_sent(), 0);
  EXPECT_EQ(group.allocate(10, torch::kHalf).numel(), 10);
}

TEST(TensorCheckTest, SaysWhatIsWrongWithATensor) {
  const Group group;
  EXPECT_THAT(error_of([&] { group.all_reduce(torch::ones({2, 3}).t(), ReduceOp::sum, "weights"); }),
              testing::AllOf(HasSubstr("all_reduce \"weights\" in group \"self\""), HasSubstr("not contiguous"),
                             HasSubstr(".contiguous()")));
  EXPECT_THAT(error_of([&] { group.all_reduce(at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(error_of([&] { group.broadcast(torch::ones({2}), 1); }), HasSubstr("rank 1 is not in a group of 1"));
  EXPECT_THAT(error_of([&] { group.broadcast(torch::ones({2}), -1); }), HasSubstr("rank -1"));
  EXPECT_THAT(error_of([&] { group.send(torch::ones({2}), 0); }), HasSubstr("this rank itself"));
  EXPECT_THAT(error_of([&] { group.all_gather(torch::ones({3}), torch::ones({2})); }),
              HasSubstr("1 x 2 elements, it has 3"));
  EXPECT_THAT(error_of([&] { group.all_gather(torch::ones({2}), torch::ones({2}, torch::kHalf)); }),
              HasSubstr("Float, Half"));
  const at::Tensor elsewhere = torch::ones({2}, torch::device(torch::kMeta));
  group.all_reduce(elsewhere).wait(); // one rank moves nothing, so it may lie anywhere
  EXPECT_EQ(group.allocate(3, torch::kHalf, torch::kMeta).device(), elsewhere.device());
}

TEST(TensorCheckTest, RefusesWhatDoesNotDivide) {
  test::on_ranks(2, [](World& world) {
    const Group& group = world.group();
    auto three = torch::ones({3});
    auto other = torch::ones({3});
    EXPECT_THAT(error_of([&] { group.reduce_scatter(torch::ones({1}), three); }),
                HasSubstr("2 x 1 elements, it has 3"));
    EXPECT_THAT(error_of([&] { group.all_reduce(torch::ones({2}, torch::device(torch::kMeta))); }), HasSubstr("meta"));
    EXPECT_THAT(error_of([&] { group.all_to_all(other, three); }), HasSubstr("3 elements do not divide among 2"));
    EXPECT_THAT(error_of([&] { group.all_to_all(three.narrow(0, 0, 2), three.narrow(0, 0, 2)); }),
                HasSubstr("same memory"));
    EXPECT_THAT(error_of([&] { world.subgroup({0, 2}, "bad"); }), HasSubstr("different ranks between 0 and 1"));
    EXPECT_THAT(error_of([&] { world.subgroup({0, 0}, "bad"); }), HasSubstr("\"bad\""));
    EXPECT_THAT(error_of([&] { world.subgroup({}, "bad"); }), HasSubstr("\"bad\""));
    // None of these has used up a number or disturbed the others.
    group.all_reduce(three).wait();
    EXPECT_EQ(three[0].item<float>(), 2.0F);
    world.close();
    world.close();
    EXPECT_THAT(error_of([&] { group.all_reduce(three); }), HasSubstr("after its world was closed"));
    EXPECT_THAT(error_of([&] { world.subgroup({0, 1}, "late"); }), HasSubstr("closed world"));
  });
}

} // namespace
} // namespace trireme::comm
