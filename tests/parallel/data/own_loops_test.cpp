// What a loop of a program's own needs beside the gradients: seeds of the ranks.
#include "toy.h"

#include <trireme/parallel/data/data_parallel.h>
#include <trireme/parallel/data/manual_seed.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <set>

namespace trireme::parallel {
namespace {

using test::run_ranks;
using testing::IsEmpty;

at::Tensor mask() {
  return torch::dropout(torch::ones({64}), 0.5, /*train=*/true);
}

at::Tensor of_all(const comm::World& world, const at::Tensor& mine) {
  at::Tensor all = torch::empty({world.size(), mine.numel()});
  world.group().all_gather(all, mine, "masks").wait();
  return all;
}

TEST(ManualSeedTest, MasksDifferBetweenRanksAndAreRepeatable) {
  EXPECT_THAT(run_ranks(3,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
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
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
                          manual_seed(1, world);
                          torch::nn::Linear model(6, 3);
                          const DataParallel parallel(*model, world.group());
                          const at::Tensor all = of_all(world, model->weight.detach().flatten());
                          EXPECT_TRUE(all[0].equal(all[1]));
                          torch::manual_seed(1);
                          EXPECT_TRUE(torch::nn::Linear(6, 3)->weight.equal(model->weight));
                        }),
              IsEmpty());
}

} // namespace
} // namespace trireme::parallel
