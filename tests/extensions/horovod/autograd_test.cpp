// Gradients through Horovod's operations equal those of one process that has the tensors of all ranks and adds up the
// ranks' losses.
#include "job.h"

#include <trireme/base/error.h>
#include <trireme/horovod.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <numeric>

namespace trireme::horovod {
namespace {

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(int rank, at::IntArrayRef sizes) {
  const at::Tensor values =
      torch::cos(torch::arange(c10::multiply_integers(sizes), torch::kFloat64).view(sizes) * (rank + 0.7) + rank);
  return values.clone().requires_grad_();
}

/// A rank's loss: its weights differ from element to element, and from rank to rank.
at::Tensor loss_of(int rank, const at::Tensor& y) {
  return (torch::arange(1.0, static_cast<double>(y.numel()) + 1, torch::kFloat64).view_as(y) * (y + rank).square())
      .sum();
}

/// `ours` makes this rank's result of its tensor, `formula` each rank's of all tensors. First and second derivatives.
void expect_same_gradients(const std::string& what, const std::function<int64_t(int)>& rows,
                           const std::function<at::Tensor(const at::Tensor&)>& ours,
                           const std::function<at::Tensor(const Tensors&, int)>& formula) {
  Tensors all;
  for (int rank = 0; rank < size(); ++rank) {
    all.push_back(leaf(rank, {rows(rank), 2}));
  }
  at::Tensor total = torch::zeros({}, torch::kFloat64);
  for (int rank = 0; rank < size(); ++rank) {
    total = total + loss_of(rank, formula(all, rank)) + 0 * all[rank].square().sum(); // autograd wants all of them used
  }
  const Tensors expected = torch::autograd::grad({total}, all, {}, true, true);
  Tensors squares;
  for (const at::Tensor& gradient : expected) {
    squares.push_back(gradient.pow(3).sum());
  }
  const Tensors second = torch::autograd::grad({torch::stack(squares).sum()}, all);

  const at::Tensor mine = leaf(rank(), {rows(rank()), 2});
  const at::Tensor result = ours(mine);
  EXPECT_TRUE(result.detach().allclose(formula(all, rank()).detach(), 1e-12)) << what;
  const at::Tensor first = torch::autograd::grad({loss_of(rank(), result)}, {mine}, {}, true, true)[0];
  EXPECT_TRUE(first.detach().allclose(expected[rank()].detach(), 1e-11)) << what;
  EXPECT_TRUE(torch::autograd::grad({first.pow(3).sum()}, {mine})[0].allclose(second[rank()], 1e-11))
      << what << ", second";
}

at::Tensor sum_of(const Tensors& all) {
  return torch::stack(all).sum(0);
}

class HorovodAutogradTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HorovodAutogradTest, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

TEST_P(HorovodAutogradTest, OfReductions) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    const auto same = [](int) { return int64_t{7}; };
    expect_same_gradients(
        "average", same, [](const at::Tensor& x) { return allreduce(x); },
        [](const Tensors& all, int) { return sum_of(all) / size(); });
    expect_same_gradients(
        "sum with factors", same,
        [](const at::Tensor& x) { return allreduce(x, {.op = Op::sum, .prescale = 3, .postscale = 0.5}); },
        [](const Tensors& all, int) { return sum_of(all) * 1.5; });
    expect_same_gradients(
        "a group", same,
        [](const at::Tensor& x) {
          const Tensors group = grouped_allreduce({x * 2, x.sin(), x.detach()}, {.op = Op::sum});
          return group[0] * group[1] + 0 * group[2];
        },
        [](const Tensors& all, int) {
          Tensors sines;
          for (const at::Tensor& one : all) {
            sines.push_back(one.sin());
          }
          return 2 * sum_of(all) * sum_of(sines);
        });
    const auto part = [](const at::Tensor& whole,
                         int rank) { // 7 rows, the first ranks have one more
      return at::tensor_split(whole, size())[static_cast<size_t>(rank)];
    };
    expect_same_gradients(
        "reducescatter", same, [](const at::Tensor& x) { return reducescatter(x); },
        [&](const Tensors& all, int rank) { return part(sum_of(all) / size(), rank); });
    expect_same_gradients(
        "reducescatter of a sum", same,
        [](const at::Tensor& x) { return reducescatter(x, {.op = Op::sum, .prescale = 3}); },
        [&](const Tensors& all, int rank) { return part(3 * sum_of(all), rank); });
  });
}

TEST_P(HorovodAutogradTest, OfWhatMovesRows) {
  on_ranks(GetParam(), [](comm::World& world) {
    const Job job(world);
    const auto unequal = [](int rank) { return int64_t{2} * rank; }; // rank 0 has none
    expect_same_gradients(
        "allgather", unequal, [](const at::Tensor& x) { return allgather(x); },
        [](const Tensors& all, int) { return torch::cat(all); });
    for (int root = 0; root < size(); ++root) {
      expect_same_gradients(
          "broadcast", [](int) { return int64_t{3}; }, [&](const at::Tensor& x) { return broadcast(x, root); },
          [&](const Tensors& all, int) { return all[root]; });
    }
    const auto splits_of = [](int rank) { // to + rank rows to each rank
      std::vector<int64_t> splits;
      for (int to = 0; to < size(); ++to) {
        splits.push_back(to + rank);
      }
      return splits;
    };
    const auto rows = [&](int rank) {
      const auto splits = splits_of(rank);
      return std::accumulate(splits.begin(), splits.end(), int64_t{0});
    };
    expect_same_gradients(
        "alltoall", rows, [&](const at::Tensor& x) { return alltoall(x, splits_of(rank())).first; },
        [&](const Tensors& all, int rank) {
          Tensors parts;
          for (int from = 0; from < size(); ++from) {
            parts.push_back(all[from].split_with_sizes(splits_of(from))[static_cast<size_t>(rank)]);
          }
          return torch::cat(parts);
        });
  });
}

// Ranks whose backward comes to two operations in different orders would wait for each other for ever, if these had no
// names of their forward.
TEST(HorovodAutogradWaysTest, GradientsTravelUnderTheNameOfTheirForward) {
  ::setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1", 1);
  on_ranks(2, [](comm::World& world) {
    const Job job(world);
    const at::Tensor x = leaf(0, {3});
    const at::Tensor y = allreduce(x, {.name = "y", .op = Op::sum}), z = allreduce(x);
    EXPECT_THAT(error_of([&] { (rank() == 0 ? y : z).sum().backward(); }), HasSubstr("has waited for other ranks"));
  });
  ::unsetenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
}

TEST(HorovodAutogradWaysTest, ProcessSetsHalfPrecisionAndWhatHasNoGradient) {
  on_ranks(3, [](comm::World& world) {
    const Job job(world);
    const ProcessSet pair = add_process_set({0, 2});
    const at::Tensor x = leaf(rank(), {4});
    if (pair.included()) {
      (allreduce(x, {.process_set = pair}) * (1 + rank())).sum().backward();
      EXPECT_TRUE(x.grad().allclose(torch::full({4}, 2.0, torch::kFloat64)));
      const at::Tensor rows = leaf(rank(), {2 + rank(), 2});
      (allgather(rows, "", pair) * (1 + rank())).sum().backward();
      EXPECT_TRUE(rows.grad().allclose(torch::full({2 + rank(), 2}, 4.0, torch::kFloat64)));
    }
    const at::Tensor w = torch::full({3}, 1.0 + rank(), torch::requires_grad());
    const at::Tensor mean = allreduce(w, {.compression = Compression::fp16});
    EXPECT_EQ(mean.scalar_type(), at::kFloat);
    (mean * (1 + rank())).sum().backward();
    EXPECT_TRUE(w.grad().allclose(torch::full({3}, 2.0), 0, 2e-3));

    EXPECT_THAT(error_of([&] { allreduce(w, {.op = Op::max}).sum().backward(); }),
                HasSubstr("allreduce with Max has no gradient"));
    EXPECT_FALSE(allreduce(w.detach(), {.op = Op::max}).requires_grad());
    {
      const at::NoGradGuard no_grad;
      EXPECT_FALSE(allreduce(w).requires_grad());
    }
    EXPECT_FALSE(synchronize(allreduce_async(w)).requires_grad());
    EXPECT_FALSE(allgather(torch::arange(3)).requires_grad());
  });
}

} // namespace
} // namespace trireme::horovod
