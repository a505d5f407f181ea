// A calibration makes a block cost what was measured, whatever the run does with its activations.
#include "clusters.h"

#include <trireme/plan/fit_block.h>
#include <trireme/plan/layer_cost.h>

#include <gtest/gtest.h>

namespace trireme::plan {
namespace {

double block_seconds(const Cluster& cluster, const Job& job, const BlockTime& block) {
  const LayerCost cost = layer_costs(cluster, job, {.tensor = block.tensor, .micro_batch = block.samples}).at(2);
  return cost.forward + cost.backward();
}

// The machine as it is, and as it is described before blocks are measured: twice as fast, and nothing beside the work.
class FitBlockTest : public testing::Test {
 protected:
  FitBlockTest() {
    described_.pass_bandwidth = 2e9;
    machine_.pass_bandwidth = 1e9;
    described_.attention.points = {{1, 4e9}};
    machine_.attention.points = {{1, 2e9}};
    machine_.layer_seconds = 1e-3;
    machine_.weight_seconds = 2e-3;
    for (BlockTime& block : measured_) {
      block.seconds = block_seconds(machine_, job_, block);
    }
  }

  Job job_ = gpt_job(4, 64, 4, 16, 100, 8);
  Cluster machine_ = multiplying_host(1, 1e9, {});
  Cluster described_ = multiplying_host(1, 2e9, {});
  std::array<BlockTime, 3> measured_ = {BlockTime{.samples = 1}, BlockTime{.samples = 4},
                                        BlockTime{.samples = 1, .tensor = 2}};
};

TEST_F(FitBlockTest, ABlockCostsWhatWasMeasured) {
  fit_block(measured_, job_, described_);
  EXPECT_NEAR(described_.layer_seconds, machine_.layer_seconds, 1e-9);
  EXPECT_NEAR(described_.weight_seconds, machine_.weight_seconds, 1e-9);
  EXPECT_NEAR(described_.pass_bandwidth, machine_.pass_bandwidth, 1);
  EXPECT_NEAR(described_.attention.points.front().flops, 2e9, 1);
  EXPECT_NEAR(described_.products.points.front().flops, 1e9, 1);
  EXPECT_NEAR(described_.peak_flops, 1e9, 1);
  for (const BlockTime& block : measured_) {
    EXPECT_NEAR(block_seconds(described_, job_, block), block.seconds, 1e-9);
  }
}

TEST_F(FitBlockTest, WaysOfActivationsChangeNothing) {
  using activations::Way;
  Cluster plain = described_;
  fit_block(measured_, job_, plain);
  for (const activations::Options& ways :
       {activations::Options{.policy = Way::recompute},
        activations::Options{.choices = {Way::recompute_nvme, Way::recompute, Way::recompute}},
        activations::Options{.policy = Way::recompute, .shares_inputs = true, .least_bytes = 0}}) {
    Job named = job_;
    named.base.activations = ways;
    Cluster fitted = described_;
    fit_block(measured_, named, fitted);
    EXPECT_EQ(fitted.layer_seconds, plain.layer_seconds);
    EXPECT_EQ(fitted.weight_seconds, plain.weight_seconds);
    EXPECT_EQ(fitted.peak_flops, plain.peak_flops);
    EXPECT_EQ(fitted.pass_bandwidth, plain.pass_bandwidth);
    EXPECT_EQ(fitted.products.points.front().flops, plain.products.points.front().flops);
    EXPECT_EQ(fitted.attention.points.front().flops, plain.attention.points.front().flops);
  }
}

// Noise may make several samples cost less than one: then all of it is speed.
TEST_F(FitBlockTest, NothingIsNegative) {
  measured_[0].seconds = 2 * measured_[1].seconds;
  fit_block(measured_, job_, described_);
  EXPECT_EQ(described_.layer_seconds, 0);
  EXPECT_EQ(described_.weight_seconds, 0);
  EXPECT_NEAR(block_seconds(described_, job_, measured_[1]), measured_[1].seconds, 1e-9);
}

} // namespace
} // namespace trireme::plan
