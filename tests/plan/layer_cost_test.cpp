// What a layer costs beside its matrix products, against numbers worked out by hand.
#include "clusters.h"

#include <trireme/plan/layer_cost.h>

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace trireme::plan {
namespace {

Job job_of_layers(int64_t layers = 4) {
  return gpt_job(layers, 64, 4, 16, 100, 8);
}

// What context ranks copy to put queries, keys and values apart and together, and what ranks that share tokens copy
// into the order of samples, where samples are small.
TEST(LayerCostTest, PassesOfContextAndOfSharedTokens) {
  Cluster cluster = multiplying_host(2, kInfinite, {});
  cluster.pass_bandwidth = 1e9;
  const auto block = [&](const Layout& layout, const Job& of) {
    const LayerCost cost = layer_costs(cluster, of, layout).at(2);
    return std::pair(cost.forward * 1e9, cost.backward() * 1e9);
  };
  const auto expect = [](std::pair<double, double> found, double forward, double backward) {
    EXPECT_NEAR(found.first, forward, 1e-6 * forward);
    EXPECT_NEAR(found.second, backward, 1e-6 * backward);
  };
  const auto with_shared_tokens = [](int64_t micro_batch) {
    Layout layout{.tensor = 2, .micro_batch = micro_batch};
    layout.sequence_parallel = true;
    return layout;
  };
  const double stream = 4.0 * 4 * 16 * 64; // bytes of 4 samples
  expect(block({.tensor = 2, .micro_batch = 4}, job_of_layers()), (12 / 2.0 + 9) * stream, 2 * (12 / 2.0 + 9) * stream);
  expect(block(with_shared_tokens(4), job_of_layers()), (21 / 2.0 + 4 * 2.5) * stream, (42 / 2.0 + 6 * 2.5) * stream);
  expect(block({.context = 2, .micro_batch = 4}, job_of_layers()), (21 + 13) * stream / 2, (42 + 24) * stream / 2);
  expect(block(with_shared_tokens(1), job_of_layers()), 21 / 2.0 * stream / 4,
         42 / 2.0 * stream / 4);                            // the only sample: in order as it comes
  const Job long_samples = gpt_job(4, 64, 4, 4096, 100, 8); // 1 MB each
  const double longer = 4.0 * 4096 * 64;
  expect(block(with_shared_tokens(2), long_samples), 2 * 21 / 2.0 * longer, 2 * 42 / 2.0 * longer);
}

// One rank writes the whole matrix and keeps it. Over context ranks some queries at a time meet the keys that they may
// see (of 2,048 and of 4,096 tokens 128 queries: 51.6 %), again in backward.
TEST(LayerCostTest, DropoutInAttentionOverContextRanks) {
  Cluster cluster = multiplying_host(2, kInfinite, {});
  cluster.pass_bandwidth = 1e9;
  Job with = gpt_job(4, 64, 4, 4096, 100, 8);
  Job without = with;
  with.model.dropout = 0.1;
  without.model.dropout = 0;
  const double stream = 4.0 * 4 * 4096 * 64; // bytes of 4 samples
  const double matrix = 4.0 * 4 * 4 * 4096 * 4096;
  for (const auto& [context, kind] : {std::pair<int64_t, context::Kind>(1, context::Kind::ring),
                                      {2, context::Kind::ring},
                                      {2, context::Kind::ulysses}}) {
    with.context_kind = without.context_kind = kind;
    const Layout layout{.context = context, .micro_batch = 4};
    const LayerCost more = layer_costs(cluster, with, layout).at(2);
    const LayerCost less = layer_costs(cluster, without, layout).at(2);
    const double share = context == 1 ? 1 : 0.515625;
    const double forward = 5 * stream + 6.5 * matrix * share;
    const double backward = 10 * stream + (context == 1 ? 9.5 : 16) * matrix * share;
    EXPECT_NEAR((more.forward - less.forward) * 1e9 * static_cast<double>(context), forward, 1e-6 * forward);
    EXPECT_NEAR((more.backward() - less.backward()) * 1e9 * static_cast<double>(context), backward, 1e-6 * backward);
  }
}

TEST(LayerCostTest, LayersOfFewerOperationsCostLessBesideTheirWork) {
  Cluster cluster = multiplying_host(1, kInfinite, {});
  cluster.layer_seconds = 1e-3;
  std::vector<double> forward;
  for (const LayerCost& cost : layer_costs(cluster, job_of_layers(1), {})) {
    forward.push_back(cost.forward);
    EXPECT_NEAR(cost.backward_input, cost.forward, 1e-9);
  }
  ASSERT_EQ(forward.size(), 5u); // tokens, positions, block, norm, head
  EXPECT_NEAR(forward[2], 1e-3, 1e-9);
  for (const size_t other : {0, 1, 3, 4}) {
    EXPECT_GT(forward[other], 0);
    EXPECT_LT(forward[other], 0.5e-3);
  }
}

TEST(LayerCostTest, TensorRanksShareWhatWeightsCost) {
  Cluster cluster = multiplying_host(4, kInfinite, {});
  cluster.layer_seconds = 1e-3;
  cluster.weight_seconds = 2e-3;
  for (const int64_t tensor : {1, 2, 4}) {
    const LayerCost block = layer_costs(cluster, job_of_layers(1), {.tensor = tensor}).at(2);
    EXPECT_NEAR(block.forward, 1e-3 + 2e-3 / static_cast<double>(tensor), 1e-9);
    EXPECT_NEAR(block.backward(), block.forward, 1e-9);
  }
}

// What activation_checkpointing names recomputes as an interval does.
TEST(LayerCostTest, NamedWaysRecomputeBlocks) {
  const Cluster cluster = multiplying_host(2, 1e9, {1e6, 0});
  Job named = job_of_layers(2);
  const auto backward = [&](const Job& of, int64_t recompute) {
    std::vector<double> out;
    for (const LayerCost& cost : layer_costs(cluster, of, {.tensor = 2, .recompute = recompute})) {
      out.push_back(cost.backward());
    }
    return out;
  };
  const std::vector<double> kept = backward(named, 0);
  const std::vector<double> all = backward(named, 1);
  named.base.activations.policy = activations::Way::recompute;
  const std::vector<double> blocks = backward(named, 0);
  named.base.activations.policy.reset();
  named.base.activations.choices = {activations::Way::keep, activations::Way::recompute};
  const std::vector<double> second = backward(named, 0);
  ASSERT_EQ(kept.size(), 6u); // tokens, positions, two blocks, norm, head
  EXPECT_GT(all[2], kept[2]);
  EXPECT_GT(all[5], kept[5]);
  EXPECT_EQ(blocks, (std::vector<double>{kept[0], kept[1], all[2], all[3], kept[4], kept[5]}));
  EXPECT_EQ(second, (std::vector<double>{kept[0], kept[1], kept[2], all[3], kept[4], kept[5]}));
}

} // namespace
} // namespace trireme::plan
