// Published step times against the plan's, from published figures of the hardware.
#include "published.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

#include <cstdio>

namespace trireme::plan {
namespace {

// Table 2: the same models on more cards, with Megatron's layout and with ZeRO stage 3.
const Row kMoreCards[] = {
    {"174.6B on 384", 96, 12288, 96, 8, 12, 384, 1536, 153, 1, 0, 1},
    {"174.6B on 768", 96, 12288, 96, 8, 12, 768, 1536, 149, 1, 0, 1},
    {"174.6B on 1536", 96, 12288, 96, 8, 12, 1536, 1536, 141, 1, 0, 1},
    {"529.6B on 560", 128, 20480, 105, 8, 35, 560, 2240, 171, 1, 0, 1},
    {"529.6B on 1120", 128, 20480, 105, 8, 35, 1120, 2240, 167, 1, 0, 1},
    {"529.6B on 2240", 128, 20480, 105, 8, 35, 2240, 2240, 159, 1, 0, 1},
};

// Table 2 again: DeepSpeed's ZeRO stage 3 without model parallelism. The measured times say that its collectives were
// not divided among a host's links and hardly hidden: on a cluster with both, the plan is up to five times as fast.
const Row kStageThree[] = {
    {"174.6B on 384", 96, 12288, 96, 1, 1, 384, 1536, 144, 4, 1, 3},
    {"174.6B on 768", 96, 12288, 96, 1, 1, 768, 1536, 88, 2, 1, 3},
    {"174.6B on 1536", 96, 12288, 96, 1, 1, 1536, 1536, 44, 1, 1, 3},
    {"529.6B on 2240", 128, 20480, 105, 1, 1, 2240, 2240, 48, 1, 1, 3},
};

void expect_near(const Row& row, double tolerance) {
  const std::optional<Best> best = best_of(row);
  ASSERT_TRUE(best) << row.name << " does not fit";
  std::printf(
      "%-16s published %5.0f, planned %5.0f TFLOP/s a card, %+5.1f %%; %s, %.1f s a step, bubble %.3f, %.1f GB a "
      "card\n",
      row.name, row.tflops, best->tflops, 100 * (best->tflops / row.tflops - 1),
      describe(best->prediction.layout, job_of(row)).c_str(), best->prediction.step_seconds, best->prediction.bubble,
      static_cast<double>(best->prediction.memory_bytes) / 1e9);
  EXPECT_NEAR(best->tflops, row.tflops, tolerance * row.tflops) << row.name;
}

TEST(PublishedTest, MegatronsTableOfWeakScaling) {
  for (const Row& row : kWeakScaling) {
    expect_near(row, 0.2);
  }
}

TEST(PublishedTest, MegatronsTableOfMoreCards) {
  for (const Row& row : kMoreCards) {
    expect_near(row, 0.2);
  }
}

TEST(PublishedTest, StageThreeOverFlatRings) {
  for (const Row& row : kStageThree) {
    expect_near(row, 0.2);
  }
}

// The table has them; in Trireme three buckets of gradients of a whole block, and two gathered blocks, leave no room
// for micro-batches as large.
TEST(PublishedTest, StageThreeRowsThatTriremeRefuses) {
  EXPECT_FALSE(best_of({"529.6B on 640", 128, 20480, 105, 1, 1, 640, 2560, 138, 4, 1, 3}));
  EXPECT_FALSE(best_of({"529.6B on 1120", 128, 20480, 105, 1, 1, 1120, 2240, 98, 2, 1, 3}));
}

Job gpt(int64_t layers, int64_t hidden) {
  return job_of({"", hidden / 128, hidden, layers, 1, 1, 1, 8, 0, 1});
}

// What the project's documents say of sizes: a card of 32 GB trains somewhat more than a billion parameters by itself;
// ten times as many (13 billion) have room for parameters only, so states must be somewhere else; and a trillion need
// three axes.
TEST(PublishedTest, SizesThatFit) {
  Cluster v100 = selene(8);
  v100.hosts = v100.ranks_per_host = v100.processors = 1;
  v100.levels.clear();
  v100.memory_bytes = 32'000'000'000;
  v100.reserved_bytes = 1'000'000'000;
  const Job billion = gpt(24, 2048);
  const Job more = gpt(40, 5120);
  EXPECT_NEAR(static_cast<double>(estimate::transformer(billion.model, {}).parameters()), 1.3e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(estimate::transformer(more.model, {}).parameters()), 13e9, 0.3e9);
  const Layout recomputed{.recompute = 1};
  EXPECT_EQ(predict(v100, billion, recomputed).refused, "");
  const Prediction refused = predict(v100, more, recomputed);
  EXPECT_THAT(refused.refused, testing::HasSubstr("too much, most for optimizer states"));
  EXPECT_NEAR(static_cast<double>(refused.memory.front().bytes), 26e9, 0.5e9) << "parameters alone";

  const Job trillion = job_of(kWeakScaling[9]);
  const Cluster many = selene(800);
  for (const Layout& two : {Layout{.data = 800, .zero_stage = 2}, Layout{.pipe = 50, .data = 16, .zero_stage = 2},
                            Layout{.data = 100, .tensor = 8, .zero_stage = 2}}) {
    Layout layout = two;
    layout.recompute = 1;
    Job divisible = trillion;
    divisible.batch = 3200;
    EXPECT_THAT(predict(many, divisible, layout).refused, testing::HasSubstr("too much"))
        << describe(layout, divisible);
  }
  Job divisible = trillion;
  divisible.batch = 3200;
  EXPECT_EQ(predict(many, divisible,
                    {.pipe = 50, .data = 2, .tensor = 8, .zero_stage = 1, .recompute = 1, .sequence_parallel = true})
                .refused,
            "");
}

Cluster v100() {
  return read_cluster(std::filesystem::path(test::source_dir()) / "examples/plan/v100.json");
}

Job of_one_card(int64_t layers, int64_t hidden, int64_t heads, int64_t batch) {
  Job job = gpt_job(layers, hidden, heads, 1024, 50257, batch);
  job.model.dropout = 0.1;
  job.base.precision.compute = estimate::Type::fp16;
  return job;
}

double tflops(const Job& job, const Prediction& prediction) {
  return published_flops(job.model, job.batch) / prediction.step_seconds / 1e12;
}

// Ren et al. 2021, arXiv:2101.06840: one card of 32 GB trains 13 billion parameters. 2 bytes of each stay on it;
// masters, both moments and, where micro-batches are added up, gradients in fp32 are on the host: 16 bytes, 208 GB of
// 13 billion.
TEST(PublishedTest, ThirteenBillionOnOneCard) {
  const Job job = of_one_card(40, 5120, 40, 512);
  const auto parameters = static_cast<double>(estimate::transformer(job.model, {}).parameters());
  EXPECT_NEAR(parameters, 13e9, 0.3e9);
  const auto of_states = [&](const std::vector<estimate::Item>& items) {
    double bytes = 0;
    for (const estimate::Item& item : items) {
      bytes += item.name == "gradients" || item.name == "masters" || item.name == "optimizer_states"
                   ? static_cast<double>(item.bytes)
                   : 0;
    }
    return bytes;
  };
  Shared shared(job);
  const Layout papers{.zero_stage = 2, .micro_batch = 2, .recompute = 1, .states = offload::Place::host};
  const estimate::Run run = run_of(job, papers, shared);
  const estimate::StageMemory memory = estimate::memory_of(run).front();
  EXPECT_NEAR(static_cast<double>(memory.item(estimate::Category::parameters).bytes), 2 * parameters,
              0.01 * 2 * parameters)
      << "26 GB";
  EXPECT_EQ(of_states(memory.items), 0);
  EXPECT_NEAR(of_states(estimate::moves_of(run).front().on_host) / parameters, 16, 0.1) << "208 GB of 13 billion";
  const int64_t training = memory.training() - memory.always_on_host();
  EXPECT_LE(training + v100().reserved_bytes, v100().memory_bytes) << "with a card that holds parameters only";

  Cluster card_alone = v100();
  card_alone.host = {};
  card_alone.disk = {};
  EXPECT_TRUE(search(card_alone, job).best.empty()) << "nothing fits without its host";
  const Plan found = search(v100(), job);
  ASSERT_FALSE(found.best.empty());
  const Prediction& best = found.best.front();
  EXPECT_LE(best.memory_bytes, v100().memory_bytes);
  EXPECT_EQ(best.layout.states, offload::Place::host);
  EXPECT_NEAR(of_states(best.on_host) / parameters, 16, 0.1);
  std::printf("%-16s %s: %.1f TFLOP/s, %.0f s a step, %.1f GB on the card, %.0f GB on the host\n", "13B on a V100",
              describe(best.layout, job).c_str(), tflops(job, best), best.step_seconds,
              static_cast<double>(best.memory_bytes) / 1e9, static_cast<double>(best.host_bytes) / 1e9);
}

// The card's "achieved" comes from a run without offload, 39 TFLOP/s for 1.2 billion parameters (Shoeybi et al. 2019,
// arXiv:1909.08053, table 1: 40 layers of 1536, 8 samples). With offload 10 billion were published at 40 TFLOP/s
// (arXiv:2101.06840; DeepSpeed's tutorial has 50 layers of 4096 and 10 samples a micro-batch). Neither says whether
// what is computed twice counts: the plan's figure with it is above the published one, a quarter less is below.
TEST(PublishedTest, TenBillionOnOneCardAreAsFastAsOneWithoutOffload) {
  const Job small = of_one_card(40, 1536, 16, 8);
  const Prediction alone = predict(v100(), small, {.micro_batch = 8, .recompute = 1});
  ASSERT_EQ(alone.refused, "");
  const Job large = of_one_card(50, 4096, 32, 510);
  Cluster roomy = v100(); // parameters are on the card twice for a moment at the start
  roomy.memory_bytes = 64'000'000'000;
  const Prediction moved =
      predict(roomy, large, {.zero_stage = 2, .micro_batch = 10, .recompute = 1, .states = offload::Place::host});
  ASSERT_EQ(moved.refused, "");
  for (const auto& [name, published, planned] :
       {std::tuple("1.2B alone", 39.0, tflops(small, alone)), {"10B with offload", 40.0, tflops(large, moved)}}) {
    std::printf("%-16s published %5.0f, planned %5.1f TFLOP/s with what is computed twice, %5.1f without\n", name,
                published, planned, 0.75 * planned);
    EXPECT_GT(planned, 0.95 * published);
    EXPECT_LT(0.75 * planned, 1.05 * published);
    EXPECT_NEAR(planned, published, 0.3 * published);
  }
  EXPECT_LT(moved.step_seconds, 1.02 * moved.pipeline_seconds)
      << "the optimizer on the host is hardly seen in a step of 51 micro-batches";
}

} // namespace
} // namespace trireme::plan
