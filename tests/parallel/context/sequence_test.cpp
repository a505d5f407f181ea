#include <trireme/parallel/context/sequence.h>

#include <trireme/base/error.h>

#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>

#include <gmock/gmock.h>

namespace trireme::context {
namespace {

using testing::HasSubstr;

TEST(ContextSequenceTest, WhichTokensARankHas) {
  test::on_ranks(3, [](comm::World& world) {
    const std::vector<std::vector<int64_t>> zigzag = {{0, 1, 10, 11}, {2, 3, 8, 9}, {4, 5, 6, 7}};
    const std::vector<std::vector<int64_t>> straight = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}};
    const auto mine = [&](const auto& of) {
      return at::tensor(at::IntArrayRef(of[static_cast<size_t>(world.rank())]));
    };
    EXPECT_TRUE(positions(12, world.group(), Kind::ring, at::kCPU).equal(mine(zigzag)));
    EXPECT_TRUE(positions(12, world.group(), Kind::ulysses, at::kCPU).equal(mine(straight)));
    for (const Kind kind : {Kind::ring, Kind::ulysses}) {
      const at::Tensor tokens = at::arange(24).view({2, 12}) * 10;
      const at::Tensor taken = take_tokens(tokens, world.group(), kind, -1);
      EXPECT_TRUE(taken.equal(tokens.index_select(1, positions(12, world.group(), kind, at::kCPU))));
      EXPECT_TRUE(taken.is_contiguous());
      EXPECT_TRUE(join_tokens(taken, world.group(), kind, 1).equal(tokens));
      EXPECT_TRUE(join_tokens(taken > 50, world.group(), kind, 1).equal(tokens > 50));
    }
  });
}

TEST(ContextSequenceTest, GradientsGoTheSameWay) {
  for (const char* backend : {"shm", "gloo"}) {
    test::on_ranks(2,
                   [](comm::World& world) {
                     for (const Kind kind : {Kind::ring, Kind::ulysses}) {
                       const at::Tensor x = at::rand({2, 8, 3}, at::kDouble);
                       world.group().broadcast(x, 0).wait();
                       at::Tensor whole = x.clone().requires_grad_();
                       const at::Tensor taken = take_tokens(whole, world.group(), kind, 1);
                       (taken * (world.rank() + 2)).sum().backward();
                       const at::Tensor wanted = at::zeros_like(x).index_fill_(
                           1, positions(8, world.group(), kind, at::kCPU), world.rank() + 2);
                       EXPECT_TRUE(whole.grad().equal(wanted));

                       at::Tensor part = taken.detach().requires_grad_();
                       const at::Tensor joined = join_tokens(part, world.group(), kind, 1);
                       EXPECT_TRUE(joined.detach().equal(x));
                       const at::Tensor factor = at::arange(48, at::kDouble).view({2, 8, 3});
                       (joined * factor).sum().backward();
                       EXPECT_TRUE(part.grad().equal(take_tokens(factor, world.group(), kind, 1)));
                     }
                   },
                   {.backend = backend});
  }
}

TEST(ContextSequenceTest, LengthsThatDoNotDivide) {
  test::on_ranks(4, [](comm::World& world) {
    const auto refused = [&](int64_t length, Kind kind, int64_t dim = 0) -> std::string {
      try {
        take_tokens(at::zeros({length}), world.group(), kind, dim);
      } catch (const InputError& error) {
        return error.what();
      }
      return "nothing";
    };
    EXPECT_THAT(refused(12, Kind::ring), HasSubstr("12 tokens cannot be split among 4 ranks: with ring "
                                                   "attention 2 x 4 = 8 must divide its length. Make it 16"));
    EXPECT_THAT(
        refused(10, Kind::ulysses),
        HasSubstr("10 tokens cannot be split among 4 ranks: with Ulysses 4 must divide its length. Make it 12"));
    EXPECT_EQ(refused(12, Kind::ulysses), "nothing");
    EXPECT_THAT(refused(16, Kind::ring, 1), HasSubstr("has no tokens in dim 1"));
    EXPECT_THROW(join_tokens(at::zeros({3}), world.group(), Kind::ring, 0), InputError);
  });
}

TEST(ContextSequenceTest, AGroupOfOneHasAllTokens) {
  const at::Tensor x = at::arange(7);
  EXPECT_TRUE(take_tokens(x, comm::Group(), Kind::ring, 0).is_same(x));
  EXPECT_TRUE(join_tokens(x, comm::Group(), Kind::ring, 0).is_same(x));
  EXPECT_TRUE(positions(7, comm::Group(), Kind::ulysses, at::kCPU).equal(x));
}

} // namespace
} // namespace trireme::context
