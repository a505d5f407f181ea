// "auto" of activation_checkpointing in a plan: the choice that ranks would make, with planned costs.
#include "clusters.h"

#include <trireme/plan/choose_ways.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/predict.h>
#include <trireme/plan/search.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::plan {
namespace {

using activations::Way;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kBlocks = 8;

// Cards that only multiply matrices; over the link a block's activations take less time than the block, to the disk
// more.
Cluster cards(int64_t ranks = 1) {
  Cluster out = multiplying_host(ranks, 1e12, {});
  out.host = {int64_t{1} << 50, 0, 1e12, 2e10};
  out.disk = {int64_t{1} << 50, 1e9, 1e9};
  return out;
}

Job job_to_choose_for(int64_t batch = 4) {
  Job out = gpt_job(kBlocks, 256, 4, 64, 100, batch);
  out.base.clips = false;
  out.base.activations.nvme_path = "/n";
  return out;
}

Job within(int64_t budget, int64_t batch = 4) {
  Job out = job_to_choose_for(batch);
  out.base.activations.automatic = true;
  out.base.activations.memory_budget = budget;
  return out;
}

Job uniform(Way way) {
  Job out = job_to_choose_for();
  out.base.activations.policy = way;
  return out;
}

int64_t kept_by_a_block() {
  return model_of(job_to_choose_for(), {}, 1).layers.at(2).kept;
}

TEST(PlanChoiceTest, KeepsAllWhereThereIsRoom) {
  const Prediction p = predict(cards(), within(kBlocks * kept_by_a_block()), {});
  EXPECT_EQ(p.refused, "");
  EXPECT_THAT(p.choices, testing::AllOf(SizeIs(kBlocks), Each(Way::keep)));
  EXPECT_DOUBLE_EQ(p.step_seconds, predict(cards(), uniform(Way::keep), {}).step_seconds);
  EXPECT_THAT(p.moved, IsEmpty());
}

// Whatever the budget: what is chosen is within it, and no slower than any way for all parts that is.
TEST(PlanChoiceTest, IsNoSlowerThanAnyUniformWayThatFits) {
  for (const double link : {2e10, 1e9, 1e8}) {
    Cluster cluster = cards();
    cluster.host.link_bandwidth = link;
    const int64_t all = kBlocks * kept_by_a_block();
    bool any_moved = false;
    for (const double share : {0.9, 0.6, 0.4, 0.3}) {
      const auto budget = static_cast<int64_t>(share * static_cast<double>(all));
      SCOPED_TRACE(testing::Message() << "link " << link << ", share " << share);
      const Prediction chosen = predict(cluster, within(budget), {});
      ASSERT_EQ(chosen.refused, "");
      const Prediction keep = predict(cluster, uniform(Way::keep), {});
      EXPECT_LE(chosen.memory_bytes, keep.memory_bytes - all + budget + kept_by_a_block())
          << "the last may be a block's that is recomputed while the head's is counted too";
      any_moved = any_moved || !chosen.moved.empty();
      for (const Way way : activations::kWays) {
        const Prediction one = predict(cluster, uniform(way), {});
        if (one.memory_bytes <= keep.memory_bytes - all + budget) {
          EXPECT_LE(chosen.step_seconds, 1.001 * one.step_seconds) << activations::name_of(way);
        }
      }
    }
    EXPECT_EQ(any_moved, link > 1e8) << "over a slow link nothing is worth it";
  }
}

TEST(PlanChoiceTest, ABudgetThatNothingFitsIsRefused) {
  Job small = within(kept_by_a_block() / 20);
  small.base.activations.nvme_path.clear();
  EXPECT_THAT(predict(cards(), small, {}).refused,
              testing::AllOf(HasSubstr("no choice for the activations of 8 parts fits memory_budget"),
                             HasSubstr("the least is ")));
  EXPECT_THAT(predict(cards(4), within(kept_by_a_block() / 20), {.pipe = 4}).refused,
              HasSubstr("parts of stage 0 fits memory_budget"));
}

// The first stage holds four micro-batches, the last one a single one.
TEST(PlanChoiceTest, StagesChooseByThemselves) {
  Cluster cluster = cards(4);
  cluster.host.memory_bytes = 0; // nothing moves
  cluster.disk.bytes = 0;
  const Prediction p = predict(cluster, within(3 * kept_by_a_block(), 16), {.pipe = 4, .micro_batch = 1});
  ASSERT_EQ(p.refused, "");
  const Job plain = job_to_choose_for(16);
  Shared shared(plain);
  const std::vector<int64_t> bounds = shared.bounds({.pipe = 4});
  const auto recomputed = [&](int64_t stage) {
    return std::count_if(
        p.choices.begin() + bounds[static_cast<size_t>(stage)],
        p.choices.begin() + std::min<int64_t>(bounds[static_cast<size_t>(stage) + 1], std::ssize(p.choices)),
        activations::recomputes);
  };
  EXPECT_GT(recomputed(0), recomputed(3));
  EXPECT_EQ(recomputed(3), 0);
}

TEST(PlanChoiceTest, TheDiskOfAHostIsShared) {
  Cluster cluster = cards(2);
  cluster.on_host = true;
  const auto in_files = [&](int64_t room) {
    cluster.disk = {room, 1e12, 1e12};
    const Prediction p = predict(cluster, within(5 * kept_by_a_block()), {.data = 2});
    EXPECT_EQ(p.refused, "");
    EXPECT_LE(p.disk_bytes, room);
    return p.disk_bytes;
  };
  const int64_t all = in_files(int64_t{1} << 50);
  ASSERT_GT(all, 4 * kept_by_a_block()) << "of two ranks";
  const int64_t half = in_files(all / 2);
  EXPECT_GT(half, 0);
  EXPECT_LT(half, all);
}

// What the first two steps move to hosts has to have room there; of what is left half is used, because pinned memory
// comes in powers of two.
TEST(PlanChoiceTest, HostsMayBeSmall) {
  constexpr int64_t kSamples = 64; // activations are larger than the model
  Cluster cluster = cards();
  cluster.disk.bytes = 0;
  const Layout layout{.micro_batch = kSamples};
  const Job few = within(3 * kSamples * kept_by_a_block(), kSamples);
  const Prediction roomy = predict(cluster, few, layout);
  EXPECT_THAT(roomy.choices, testing::Contains(Way::host));
  Job inputs = job_to_choose_for(kSamples);
  inputs.base.activations.policy = Way::recompute_host;
  cluster.host.memory_bytes = predict(cluster, inputs, layout).host_bytes;
  const Prediction small = predict(cluster, few, layout);
  EXPECT_EQ(small.refused, "");
  EXPECT_THAT(small.choices, testing::Contains(Way::recompute));
  EXPECT_LT(small.host_bytes, cluster.host.memory_bytes);
  EXPECT_GT(small.step_seconds, roomy.step_seconds);
  cluster.host.memory_bytes -= 1;
  EXPECT_THAT(predict(cluster, few, layout).refused,
              testing::StartsWith("in the first two steps, which measure activations, offload needs "));
  cluster.host.memory_bytes = 0; // nobody knows
  EXPECT_EQ(predict(cluster, few, layout).refused, "");
}

// What may be moved is no reason to refuse: it is not chosen where there is no room. Buffers of files are on the host
// too.
TEST(PlanChoiceTest, RoomIsAskedForWhatIsChosen) {
  const Layout layout{.zero_stage = 3, .states = offload::Place::host, .parameters = offload::Place::host};
  Cluster cluster = cards();
  cluster.disk.bytes = 0;
  cluster.host.memory_bytes = predict(cluster, uniform(Way::recompute_host), layout)
                                  .host_bytes; // for states, parameters and inputs of all parts, and not a byte more
  const Prediction chosen = predict(cluster, within(3 * kept_by_a_block()), layout);
  EXPECT_EQ(chosen.refused, "");
  EXPECT_THAT(chosen.choices, testing::Contains(Way::recompute));
  cluster.disk = {int64_t{1} << 50, 1e12, 1e12};
  EXPECT_EQ(predict(cluster, within(3 * kept_by_a_block()), layout).refused, "");
}

// The first two steps have inputs in files of ranks on the CPU; what is chosen then leaves a twentieth of a disk free.
TEST(PlanChoiceTest, DisksMayBeSmall) {
  Cluster cluster = cards();
  cluster.on_host = true;
  const int64_t inputs = predict(cluster, uniform(Way::recompute_nvme), {}).disk_bytes;
  cluster.disk.bytes = inputs - 1;
  EXPECT_THAT(predict(cluster, within(3 * kept_by_a_block()), {}).refused,
              testing::AllOf(HasSubstr("in the first two steps"), HasSubstr("of the disk of a host")));
  const int64_t all = predict(cards(), uniform(Way::nvme), {}).disk_bytes;
  cluster.disk = {all, 1e12, 1e12}; // files are free, and not all parts have room
  const Prediction p = predict(cluster, within(5 * kept_by_a_block()), {});
  EXPECT_EQ(p.refused, "");
  EXPECT_GT(p.disk_bytes, 0);
  EXPECT_LE(static_cast<double>(p.disk_bytes), 0.95 * static_cast<double>(all));
}

// The embedding alone: nothing is to be chosen there.
TEST(PlanChoiceTest, StagesMayHaveNoParts) {
  Job wide = gpt_job(2, 16, 4, 32, 4000, 4);
  wide.base.activations.automatic = true;
  wide.base.activations.memory_budget = 30'000'000;
  EXPECT_EQ(predict(cards(4), wide, {.pipe = 4}).refused, "");
  wide.base.activations.layers = "Nothing";
  EXPECT_THAT(predict(cards(4), wide, {.pipe = 4}).refused, HasSubstr("\"Nothing\" matches no class of a part"));
  wide.base.activations = {.policy = Way::recompute, .layers = "Nothing"};
  EXPECT_THAT(predict(cards(), wide, {}).refused,
              HasSubstr("\"Nothing\" matches no class of a part of the model: there are GptBlock"));
}

// A list is one for each part of a model in one piece, and for each layer of a list of layers.
TEST(PlanChoiceTest, ListsAreForSomeLayouts) {
  Job named = job_to_choose_for();
  named.base.activations.choices.assign(kBlocks, Way::recompute);
  EXPECT_EQ(predict(cards(), named, {}).refused, "");
  EXPECT_EQ(predict(cards(2), named, {.pipe = 2}).refused,
            "activation_checkpointing.choices has 8 policies, but the model has 12 layers");
  named.base.activations.choices.assign(kBlocks + 4, Way::recompute);
  EXPECT_EQ(predict(cards(), named, {}).refused,
            "activation_checkpointing.choices has 12 policies, but the model has 8 parts");
  EXPECT_EQ(predict(cards(2), named, {.pipe = 2}).refused, "");
}

// Divisions of which nothing was simulated fit too, where the list is for them.
TEST(PlanChoiceTest, AListRefusesNoDivisionThatItFits) {
  const Cluster cluster = cards(4);
  for (const int64_t more : {0, 4}) { // of a model in one piece; of a list of layers
    Job named = job_to_choose_for();
    named.base.activations.choices.assign(static_cast<size_t>(kBlocks + more), Way::recompute);
    const Plan few = search(cluster, named, {.best = 1});
    const Plan all = search(cluster, named, {.best = 100'000});
    EXPECT_EQ(few.refused.size(), all.refused.size()) << more;
    EXPECT_LT(all.refused.size(), 10U) << more;
  }
}

TEST(PlanChoiceTest, DivisionsThatNoChoiceFitsAreRefused) {
  Cluster cluster = cards(4);
  cluster.host.memory_bytes = cluster.disk.bytes = 0;
  const Plan found = search(cluster, within(kept_by_a_block() / 100), {.best = 1});
  EXPECT_TRUE(found.best.empty());
  EXPECT_EQ(found.refused.size(), 10U) << "four ranks along four axes";
  for (const Prediction& p : found.refused) {
    EXPECT_THAT(p.refused, testing::AnyOf(HasSubstr("fits memory_budget"), HasSubstr("heads"), HasSubstr("tokens")));
  }
}

// A search takes each layout once: nothing is asked for by an interval of recomputation.
TEST(PlanChoiceTest, LayoutsAreListedOnce) {
  const Plan found = search(cards(2), within(4 * kept_by_a_block()), {.best = 100});
  ASSERT_GT(found.best.size(), 3U);
  for (const Prediction& p : found.best) {
    EXPECT_EQ(p.layout.recompute, 0);
    EXPECT_FALSE(p.choices.empty());
  }
}

} // namespace
} // namespace trireme::plan
