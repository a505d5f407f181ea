#include "all_layouts.h"
#include "clusters.h"

#include <trireme/plan/search.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::plan {
namespace {

Job searched_job() {
  return gpt_job(8, 512, 8, 128, 1000, 16);
}

Cluster cluster(int64_t hosts, int64_t ranks_per_host) {
  Cluster out = hosts_of(hosts, ranks_per_host, {1e10, 1e-6}, {1e9, 1e-5});
  out.memory_bytes = 2'000'000'000;
  out.peak_flops = 1e12;
  out.products.points = {{64, 2e11}, {4096, 7e11}};
  out.memory_bandwidth = out.pass_bandwidth = 1e11;
  return out;
}

std::vector<Prediction> all_predictions(const Cluster& where, const Job& what, int64_t most_micro_batch) {
  std::vector<Prediction> out;
  Shared shared(what);
  for (const Layout& layout : all_layouts(where.ranks(), what, most_micro_batch)) {
    out.push_back(predict(where, what, layout, shared));
  }
  return out;
}

void expect_what_looking_at_all_finds(const Job& what, int64_t memory) {
  Cluster where = cluster(2, 2);
  where.memory_bytes = memory;
  SearchOptions options;
  options.most_micro_batch = 4;
  const Plan found = search(where, what, options);
  std::vector<double> times;
  int64_t fitting = 0;
  for (const Prediction& p : all_predictions(where, what, 4)) {
    if (p.refused.empty()) {
      ++fitting;
      times.push_back(p.step_seconds);
    }
  }
  std::sort(times.begin(), times.end());
  ASSERT_EQ(std::ssize(found.best), std::min<int64_t>(10, fitting)) << memory;
  for (size_t i = 0; i < found.best.size(); ++i) {
    EXPECT_DOUBLE_EQ(found.best[i].step_seconds, times[i]) << i << " of " << memory << " bytes";
  }
  EXPECT_GT(fitting, found.simulated) << "some were left out";
  options.best = 1'000'000;
  const Plan all = search(where, what, options);
  ASSERT_EQ(std::ssize(all.best), fitting) << memory;
  EXPECT_EQ(all.simulated, fitting);
  for (size_t i = 0; i < all.best.size(); ++i) {
    EXPECT_DOUBLE_EQ(all.best[i].step_seconds, times[i]) << i << " of " << memory << " bytes";
    EXPECT_TRUE(i >= found.best.size() || all.best[i].layout == found.best[i].layout)
        << i << ": of those that are as fast, the same";
  }
}

TEST(SearchTest, FindsWhatLookingAtAllFinds) {
  for (const int64_t memory : {int64_t{2'000'000'000}, int64_t{420'000'000}, int64_t{230'000'000}}) {
    expect_what_looking_at_all_finds(searched_job(), memory);
  }
}

// Blocks that are named to be recomputed keep their inputs only: more layouts fit than without.
TEST(SearchTest, NamedWaysFindWhatLookingAtAllFinds) {
  Job named = searched_job();
  named.base.activations.policy = activations::Way::recompute;
  for (const int64_t memory : {int64_t{420'000'000}, int64_t{230'000'000}}) {
    expect_what_looking_at_all_finds(named, memory);
  }
}

TEST(SearchTest, ChosenWaysFindWhatLookingAtAllFinds) {
  Job chosen = searched_job();
  chosen.base.activations.automatic = true;
  const int64_t block = model_of(chosen, {}, 1).layers.at(2).kept;
  for (const int64_t blocks : {2, 5}) {
    chosen.base.activations.memory_budget = blocks * block;
    for (const int64_t memory : {int64_t{420'000'000}, int64_t{230'000'000}}) {
      expect_what_looking_at_all_finds(chosen, memory);
    }
  }
}

TEST(SearchTest, RefusedDivisionsSayWhy) {
  Cluster where = cluster(1, 3);
  where.memory_bytes = 200'000'000;
  const Plan found = search(where, searched_job());
  const auto with = [&](const char* words) {
    return std::any_of(found.refused.begin(), found.refused.end(),
                       [&](const Prediction& p) { return p.refused.find(words) != std::string::npos; });
  };
  EXPECT_TRUE(with("heads 8 cannot be divided by tensor 3"));
  EXPECT_TRUE(with("batch 16 cannot be divided by data 3"));
  EXPECT_TRUE(with("sequence 128 cannot be divided"));
  where.memory_bytes = 1'000'000;
  const Plan nothing = search(where, searched_job());
  EXPECT_TRUE(nothing.best.empty());
  ASSERT_FALSE(nothing.refused.empty());
  EXPECT_THAT(nothing.refused.front().refused, testing::HasSubstr("too much"));
  EXPECT_EQ(nothing.refused.size(), 4u) << "three ranks along one of four axes";
}

// The lower bounds are what makes leaving out right, whatever becomes of activations.
TEST(SearchTest, BoundsAreBounds) {
  using activations::Way;
  Cluster where = cluster(2, 2);
  where.host = {int64_t{1} << 40, 0, 1e10, 1e10};
  where.disk = {int64_t{1} << 40, 1e9, 1e9};
  const int64_t parameters = estimate::transformer(searched_job().model, {}).parameters();
  std::vector<activations::Options> ways(10);
  ways[1].policy = Way::recompute;
  ways[2].policy = Way::nvme;
  ways[3] = {.policy = Way::recompute, .layers = "Norm"}; // of a list of layers
  ways[4].choices = {Way::keep, Way::recompute};
  ways[4].choices.resize(static_cast<size_t>(searched_job().model.layers), Way::recompute); // of a model in one piece
  ways[9].choices = ways[4].choices;
  ways[9].choices.resize(static_cast<size_t>(searched_job().model.layers) + 4, Way::keep); // of a list of layers
  ways[5] = {.policy = Way::recompute, .shares_inputs = true, .least_bytes = 0};
  ways[6] = {.automatic = true, .memory_budget = 1};
  ways[7].policy = Way::host;
  ways[8].policy = Way::recompute_host;
  for (const activations::Options& activations : ways) {
    Job what = searched_job();
    what.base.activations = activations;
    Shared shared(what);
    int64_t looked_at = 0;
    for (const Prediction& p : all_predictions(where, what, 2)) {
      if (p.memory_bytes == 0) { // another number of parts
        continue;
      }
      ++looked_at;
      EXPECT_LE(least_memory(what, p.layout, parameters, least_of_a_block(what, p.layout)), p.memory_bytes)
          << describe(p.layout, what);
      if (p.refused.empty()) {
        EXPECT_LE(least_seconds(where, what, p.layout, layer_costs(where, what, p.layout), shared),
                  p.step_seconds * (1 + 1e-12))
            << describe(p.layout, what);
      }
    }
    EXPECT_GT(looked_at, 10);
  }
}

// 1,024 ranks: few of the layouts are worked out.
TEST(SearchTest, AThousandRanksAreFewSimulations) {
  Job large = gpt_job(64, 8192, 64, 2048, 51200, 1024);
  large.base.precision.compute = estimate::Type::bf16;
  Cluster where = hosts_of(128, 8, {2e11, 5e-6}, {2e10, 1e-5});
  where.memory_bytes = 80'000'000'000;
  where.peak_flops = 3e14;
  where.products.points = {{1, 2e14}};
  where.memory_bandwidth = where.pass_bandwidth = 1.7e12;
  const Plan found = search(where, large);
  EXPECT_EQ(found.best.size(), 10u);
  EXPECT_GT(found.candidates, 20'000);
  EXPECT_LT(found.estimated, 1'000);
  EXPECT_LT(found.simulated, 500);
  EXPECT_TRUE(std::is_sorted(found.best.begin(), found.best.end(),
                             [](const auto& a, const auto& b) { return a.step_seconds < b.step_seconds; }));
}

} // namespace
} // namespace trireme::plan
