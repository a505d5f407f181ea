// What tensor-parallel ranks exchange: values, gradients and bytes against their formulas.
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/parallel/tensor/own_random.h>
#include <trireme/parallel/tensor/ranks.h>

#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::tensor {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

at::Tensor values(int rank, at::IntArrayRef sizes) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kDouble) * (1.0 + rank)).reshape(sizes);
}

/// Adds up f(rank) over the ranks.
template <typename F>
at::Tensor sum_of(int ranks, const F& f) {
  at::Tensor sum = f(0);
  for (int rank = 1; rank < ranks; ++rank) {
    sum = sum + f(rank);
  }
  return sum;
}

void expect_same(const at::Tensor& mine, const at::Tensor& expected) {
  ASSERT_EQ(mine.sizes(), expected.sizes());
  EXPECT_TRUE(mine.allclose(expected, 1e-12, 1e-12)) << mine << "\n" << expected;
}

void check(comm::World& world) {
  const comm::Group& ranks = world.group();
  const int n = ranks.size();
  const int me = ranks.rank();
  const std::vector<int64_t> sizes = {2, 6 * n, 3};
  const auto weights = [&](int rank, at::IntArrayRef of) {
    return values(rank + 7, of);
  }; // the gradient that comes back on each rank
  const auto run = [&](const auto& f, const at::Tensor& x, at::Tensor* grad) {
    const at::Tensor leaf = x.detach().clone().set_requires_grad(true);
    const at::Tensor y = f(leaf);
    (y * weights(me, y.sizes())).sum().backward();
    *grad = leaf.grad();
    return y.detach();
  };
  at::Tensor grad;

  expect_same(run([&](const at::Tensor& x) { return copy_to_ranks(x, ranks); }, values(0, sizes), &grad),
              values(0, sizes));
  expect_same(grad, sum_of(n, [&](int rank) { return weights(rank, sizes); }));

  expect_same(run([&](const at::Tensor& x) { return sum_over_ranks(x, ranks); }, values(me, sizes), &grad),
              sum_of(n, [&](int rank) { return values(rank, sizes); }));
  expect_same(grad, weights(me, sizes));

  for (const int64_t dim : {0, 1, 2}) {
    std::vector<int64_t> whole = {2, 4, 3};
    whole[static_cast<size_t>(dim)] = 5 * n;
    std::vector<int64_t> part = whole;
    part[static_cast<size_t>(dim)] = 5;
    const auto slice = [&](const at::Tensor& x) { return x.narrow(dim, 5 * me, 5); };
    const auto side_by_side = [&](const auto& f) {
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < n; ++rank) {
        parts.push_back(f(rank));
      }
      return torch::cat(parts, dim);
    };

    expect_same(run([&](const at::Tensor& x) { return take_part(x, ranks, dim); }, values(0, whole), &grad),
                slice(values(0, whole)));
    expect_same(grad, side_by_side([&](int rank) { return weights(rank, part); }));

    expect_same(run([&](const at::Tensor& x) { return join_parts(x, ranks, dim); }, values(me, part), &grad),
                side_by_side([&](int rank) { return values(rank, part); }));
    expect_same(grad, slice(weights(me, whole)));

    expect_same(run([&](const at::Tensor& x) { return gather_parts(x, ranks, dim); }, values(me, part), &grad),
                side_by_side([&](int rank) { return values(rank, part); }));
    expect_same(grad, slice(sum_of(n, [&](int rank) { return weights(rank, whole); })));

    expect_same(run([&](const at::Tensor& x) { return sum_to_parts(x, ranks, dim); }, values(me, whole), &grad),
                slice(sum_of(n, [&](int rank) { return values(rank, whole); })));
    expect_same(grad, side_by_side([&](int rank) { return weights(rank, part); }));
  }
}

TEST(TensorExchangeTest, ValuesAndGradientsAreThoseOfTheFormulas) {
  for (const char* backend : {"shm", "gloo"}) {
    for (const int ranks : {2, 3, 4}) {
      EXPECT_THAT(run_ranks(ranks, check, {.backend = backend}), IsEmpty()) << ranks << " ranks, " << backend;
    }
  }
}

TEST(TensorExchangeTest, TheDerivativeOfADerivativeIsRefused) {
  on_ranks(2, [](comm::World& world) {
    const at::Tensor x = values(world.rank(), {4}).requires_grad_(true);
    const at::Tensor y = sum_over_ranks(x, world.group()).pow(3).sum();
    EXPECT_THAT([&] { torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); },
                ThrowsMessage<Error>(testing::AllOf(HasSubstr("create_graph"), HasSubstr("one tensor rank"))));
  });
}

TEST(TensorExchangeTest, BytesAreThoseOfTheFormulas) {
  on_ranks(4, [](comm::World& world) {
    const comm::Group ranks = world.group();
    const at::Tensor x = torch::ones({8, 16}).requires_grad_(true); // 512 bytes
    const auto sent = [&](const auto& f) {
      const int64_t before = ranks.bytes_sent();
      const at::Tensor y = f();
      const int64_t between = ranks.bytes_sent();
      y.sum().backward();
      return std::pair(between - before, ranks.bytes_sent() - between);
    };
    const int64_t P = 512;
    EXPECT_EQ(sent([&] { return copy_to_ranks(x, ranks); }), std::pair(int64_t{0}, 2 * P * 3 / 4));
    EXPECT_EQ(sent([&] { return sum_over_ranks(x, ranks); }), std::pair(2 * P * 3 / 4, int64_t{0}));
    EXPECT_EQ(sent([&] { return take_part(x, ranks, 0); }), std::pair(int64_t{0}, P * 3 / 4));
    EXPECT_EQ(sent([&] { return join_parts(x, ranks, 0); }),
              std::pair(4 * P * 3 / 4, int64_t{0})); // P is that of the whole
    EXPECT_EQ(sent([&] { return gather_parts(x, ranks, 0); }), std::pair(4 * P * 3 / 4, 4 * P * 3 / 4));
    EXPECT_EQ(sent([&] { return sum_to_parts(x, ranks, 0); }), std::pair(P * 3 / 4, P * 3 / 4));
  });
}

TEST(TensorExchangeTest, ASequenceThatDoesNotDivideIsRefused) {
  on_ranks(2, [](comm::World& world) {
    const auto refused = [&](const auto& f) {
      EXPECT_THAT(
          f, ThrowsMessage<InputError>(HasSubstr("dim 1 of a tensor of sizes [2, 5] does not divide by the 2 ranks")));
    };
    refused([&] { take_part(torch::ones({2, 5}), world.group(), 1); });
    refused([&] { sum_to_parts(torch::ones({2, 5}), world.group(), 1); });
  });
}

TEST(OwnRandomTest, NumbersDifferInsideAndAreTheSameOutside) {
  on_ranks(3, [](comm::World& world) {
    const auto same_everywhere = [&](const at::Tensor& mine) {
      const at::Tensor all = torch::empty({3, mine.numel()});
      world.group().all_gather(all.view({-1}), mine).wait();
      return std::pair(all[0].equal(all[1]), all[1].equal(all[2]));
    };
    torch::manual_seed(5);
    at::Tensor inside, again;
    for (at::Tensor* drawn : {&inside, &again}) {
      const OwnRandom own(world.rank(), 3, at::kCPU);
      *drawn = torch::rand({20});
    }
    EXPECT_EQ(same_everywhere(inside), std::pair(false, false));
    EXPECT_FALSE(inside.equal(again));
    EXPECT_EQ(same_everywhere(torch::rand({20})), std::pair(true, true));
    torch::manual_seed(5); // a recomputation starts from the same state
    const OwnRandom own(world.rank(), 3, at::kCPU);
    EXPECT_TRUE(inside.equal(torch::rand({20})));
  });
}

TEST(PartOfTest, PartsAreNearlyEqual) {
  EXPECT_EQ(part_of(10, 0, 4).size(), 3);
  EXPECT_EQ(part_of(10, 1, 4).begin, 3);
  EXPECT_EQ(part_of(10, 2, 4).begin, 6);
  EXPECT_EQ(part_of(10, 3, 4).begin, 8);
  EXPECT_EQ(part_of(10, 3, 4).end, 10);
}

} // namespace
} // namespace trireme::tensor
