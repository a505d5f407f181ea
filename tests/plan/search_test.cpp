#include <trireme/plan/search.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::plan {
namespace {

Job job() {
  Job out;
  out.gpt.layers = 8;
  out.gpt.hidden = 512;
  out.gpt.heads = 8;
  out.gpt.sequence_length = 128;
  out.gpt.vocab_size = 1000;
  out.batch = 16;
  return out;
}

Cluster cluster(int64_t hosts, int64_t ranks_per_host) {
  Cluster out;
  out.hosts = hosts;
  out.ranks_per_host = out.processors = ranks_per_host;
  out.memory_bytes = 2'000'000'000;
  out.peak_flops = 1e12;
  out.products.points = {{64, 2e11}, {4096, 7e11}};
  out.memory_bandwidth = out.pass_bandwidth = 1e11;
  out.levels = {{"inside_host", ranks_per_host, 1e10, 1e-6}};
  if (hosts > 1) {
    out.levels.push_back({"between_hosts", out.ranks(), 1e9, 1e-5});
  }
  return out;
}

// Every layout that the search may consider, without any pruning.
std::vector<Prediction> all_layouts(const Cluster& where, const Job& what, int64_t most_micro_batch) {
  std::vector<Prediction> out;
  Shared shared(what);
  const int64_t n = where.ranks();
  for (int64_t tensor = 1; tensor <= n; ++tensor) {
    for (int64_t context = 1; context * tensor <= n; ++context) {
      for (int64_t pipe = 1; pipe * context * tensor <= n; ++pipe) {
        if (n % (pipe * context * tensor) != 0) {
          continue;
        }
        Layout l{.pipe = pipe, .data = n / (pipe * context * tensor), .context = context, .tensor = tensor};
        for (l.micro_batch = 1; l.micro_batch <= most_micro_batch; ++l.micro_batch) {
          for (const bool sp : {false, true}) {
            for (l.recompute = 0; l.recompute <= 1; ++l.recompute) {
              for (l.zero_stage = 0; l.zero_stage <= 3; ++l.zero_stage) {
                for (int64_t chunks = 1; chunks <= 9; ++chunks) { // 9: zero-bubble
                  l.sequence_parallel = sp;
                  l.chunks = chunks == 9 ? 1 : chunks;
                  l.schedule = chunks == 9 ? pipeline::ScheduleKind::zero_bubble : chunks > 1 ? pipeline::ScheduleKind::interleaved : pipeline::ScheduleKind::one_f_one_b;
                  const bool searched = (!sp || tensor > 1) && (l.zero_stage == 0 || l.gradient_ranks() > 1) && (pipe > 1 || chunks == 1) &&
                                        (l.chunks == 1 || (pipe * l.chunks <= 8 && (8 % (pipe * l.chunks) == 0 || l.chunks == 2)));
                  if (searched && why_impossible(what, l).empty()) {
                    out.push_back(predict(where, what, l, shared));
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  return out;
}

TEST(SearchTest, FindsWhatLookingAtAllFinds) {
  for (const int64_t memory : {int64_t{2'000'000'000}, int64_t{420'000'000}, int64_t{230'000'000}}) {
    Cluster where = cluster(2, 2);
    where.memory_bytes = memory;
    SearchOptions options;
    options.most_micro_batch = 4;
    const Plan found = search(where, job(), options);
    std::vector<double> times;
    int64_t fitting = 0;
    for (const Prediction& p : all_layouts(where, job(), 4)) {
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
  }
}

TEST(SearchTest, RefusedDivisionsSayWhy) {
  Cluster where = cluster(1, 3);
  where.memory_bytes = 200'000'000;
  const Plan found = search(where, job());
  const auto with = [&](const char* words) {
    return std::any_of(found.refused.begin(), found.refused.end(), [&](const Prediction& p) { return p.refused.find(words) != std::string::npos; });
  };
  EXPECT_TRUE(with("heads 8 cannot be divided by tensor 3"));
  EXPECT_TRUE(with("batch 16 cannot be divided by data 3"));
  EXPECT_TRUE(with("sequence 128 cannot be divided"));
  where.memory_bytes = 1'000'000;
  const Plan nothing = search(where, job());
  EXPECT_TRUE(nothing.best.empty());
  ASSERT_FALSE(nothing.refused.empty());
  EXPECT_THAT(nothing.refused.front().refused, testing::HasSubstr("too much"));
  EXPECT_EQ(nothing.refused.size(), 4u) << "three ranks along one of four axes";
}

// The lower bounds are what makes leaving out right.
TEST(SearchTest, BoundsAreBounds) {
  const Cluster where = cluster(2, 2);
  const int64_t parameters = estimate::gpt(job().gpt, {}).parameters();
  const Job what = job();
  Shared shared(what);
  for (const Prediction& p : all_layouts(where, what, 2)) {
    const estimate::Layer block = model_of(job(), p.layout, 1).layers.at(2);
    EXPECT_LE(least_memory(job(), p.layout, parameters, p.layout.recompute > 0 ? block.input : block.kept), p.memory_bytes) << describe(p.layout, job());
    if (p.refused.empty()) {
      EXPECT_LE(least_seconds(where, job(), p.layout, layer_costs(where, job(), p.layout), shared), p.step_seconds * (1 + 1e-12)) << describe(p.layout, job());
    }
  }
}

// 1,024 ranks: few of the layouts are worked out.
TEST(SearchTest, AThousandRanksAreFewSimulations) {
  Job large = job();
  large.gpt.layers = 64;
  large.gpt.hidden = 8192;
  large.gpt.heads = 64;
  large.gpt.sequence_length = 2048;
  large.gpt.vocab_size = 51200;
  large.batch = 1024;
  large.base.compute = large.base.travel = estimate::Type::bf16;
  Cluster where = cluster(128, 8);
  where.memory_bytes = 80'000'000'000;
  where.peak_flops = 3e14;
  where.products.points = {{1, 2e14}};
  where.levels = {{"inside_host", 8, 2e11, 5e-6}, {"between_hosts", 1024, 2e10, 1e-5}};
  where.memory_bandwidth = where.pass_bandwidth = 1.7e12;
  const Plan found = search(where, large);
  EXPECT_EQ(found.best.size(), 10u);
  EXPECT_GT(found.candidates, 20'000);
  EXPECT_LT(found.estimated, 1'000);
  EXPECT_LT(found.simulated, 500);
  EXPECT_TRUE(std::is_sorted(found.best.begin(), found.best.end(), [](const auto& a, const auto& b) { return a.step_seconds < b.step_seconds; }));
}

} // namespace
} // namespace trireme::plan
