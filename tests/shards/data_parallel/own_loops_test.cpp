// What a loop of a program's own needs beside the gradients: seeds of the ranks, and a loss that is the same on all of
// them.
#include "toy.h"

#include <trireme/base/error.h>
#include <trireme/shards/data_parallel/data_parallel.h>
#include <trireme/shards/data_parallel/manual_seed.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/optim/lbfgs.h>

#include <set>

namespace trireme::parallel {
namespace {

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

at::Tensor mask() {
  return torch::dropout(torch::ones({64}), 0.5, /*train=*/true);
}

at::Tensor of_all(const comm::World& world, const at::Tensor& mine) {
  at::Tensor all = torch::empty({world.size(), mine.numel()});
  world.group().all_gather(all, mine, "masks").wait();
  return all;
}

TEST(ManualSeedTest, MasksDifferBetweenRanksAndAreRepeatable) {
  on_ranks(3, [](comm::World& world) {
    manual_seed(7, world);
    const at::Tensor first = mask();
    const at::Tensor all = of_all(world, first);
    for (int rank = 1; rank < world.size(); ++rank) {
      EXPECT_FALSE(all[rank].equal(all[rank - 1]));
    }
    manual_seed(7, world.group());
    EXPECT_TRUE(mask().equal(first));
    manual_seed(8, world);
    EXPECT_FALSE(mask().equal(first));
    torch::manual_seed(7);
    EXPECT_TRUE(all[0].equal(mask())) << "rank 0 draws what one process draws";
  });
}

TEST(ManualSeedTest, NeighbouringSeedsShareNoRank) {
  std::set<uint64_t> seeds;
  for (int64_t seed = 0; seed < 50; ++seed) {
    for (int rank = 0; rank < 50; ++rank) {
      seeds.insert(seed_of(seed, rank));
    }
  }
  EXPECT_EQ(seeds.size(), 2500u);
}

// The model that every rank draws alike, or DataParallel makes alike, trains on.
TEST(ManualSeedTest, TheModelIsRankZeros) {
  on_ranks(2, [](comm::World& world) {
    manual_seed(1, world);
    torch::nn::Linear model(6, 3);
    const DataParallel parallel(*model, world.group());
    const at::Tensor all = of_all(world, model->weight.detach().flatten());
    EXPECT_TRUE(all[0].equal(all[1]));
    torch::manual_seed(1);
    EXPECT_TRUE(torch::nn::Linear(6, 3)->weight.equal(model->weight));
  });
}

// A line search goes by the loss, so that ranks with losses of their own would part.
TEST(MeanTest, LbfgsEqualsOneProcess) {
  on_ranks(2, [](comm::World& world) {
    const auto train = [](ToyImpl& model, const at::Tensor& x,
                          const std::function<at::Tensor(const at::Tensor&)>& mean) {
      model.to(torch::kDouble);
      torch::optim::LBFGS lbfgs(model.parameters(),
                                torch::optim::LBFGSOptions(1).max_iter(8).line_search_fn("strong_wolfe"));
      int64_t closures = 0;
      for (int step = 0; step < 4; ++step) {
        lbfgs.step([&] {
          ++closures;
          lbfgs.zero_grad();
          const at::Tensor loss = model.loss(x);
          loss.backward();
          return mean(loss);
        });
      }
      return closures;
    };
    const at::Tensor x = toy_batch(0, 12).to(torch::kDouble);
    Toy model(1), alone(1);
    model->to(torch::kDouble);
    DataParallel parallel(*model, world.group(), small_buckets());
    const int64_t closures = train(*model, x.slice(0, world.rank() * 6, (world.rank() + 1) * 6),
                                   [&](const at::Tensor& loss) { return parallel.mean(loss); });
    EXPECT_EQ(closures, train(*alone, x, [](const at::Tensor& loss) { return loss; }));
    EXPECT_LT(largest_difference(*model, *alone), 1e-6);
  });
}

TEST(MeanTest, IsOfFloatingTensors) {
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    const DataParallel parallel(*model, world.group());
    EXPECT_TRUE(
        parallel.mean(torch::full({2}, 1.0 + world.rank(), torch::requires_grad())).equal(torch::full({2}, 1.5)));
    EXPECT_THAT(error_of([&] { parallel.mean(torch::tensor({1})); }), HasSubstr("mean() of a tensor of type Long"));
    EXPECT_THAT(error_of([&] { parallel.mean(at::Tensor()); }), HasSubstr("an undefined tensor"));
  });
}

TEST(SparseGradientTest, TheErrorNamesTheWayThatTakesIt) {
  on_ranks(1, [](comm::World& world) {
    const at::Tensor table = torch::ones({4, 2}, torch::requires_grad());
    const DataParallel parallel({{"table", table}}, world.group());
    const std::string error =
        error_of([&] { torch::embedding(table, torch::tensor({1}), -1, false, /*sparse=*/true).sum().backward(); });
    EXPECT_THAT(error, testing::AllOf(HasSubstr("parameter table has a sparse gradient"),
                                      HasSubstr("horovod::DistributedOptimizer")));
  });
}

} // namespace
} // namespace trireme::parallel
