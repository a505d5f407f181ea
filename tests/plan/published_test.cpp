// Published step times against the plan's, from published figures of the hardware.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/plan/search.h>

#include <gmock/gmock.h>

#include <cstdio>
#include <optional>

namespace trireme::plan {
namespace {

/// A row of Narayanan et al. 2021, arXiv:2104.04473, table 1 (weak scaling) or 2: GPT with a vocabulary of 51,200, sequences of 2,048, mixed
/// precision, all activations recomputed.
struct Row {
  const char* name;
  int64_t heads, hidden, layers, tensor, pipe, cards, batch;
  double tflops; ///< achieved by a card, operations counted with recomputation
  int64_t micro_batch; ///< 0: the table does not say, the plan chooses
  int zero_stage = 0;
};

const Row kWeakScaling[] = {
    {"1.7B", 24, 2304, 24, 1, 1, 32, 512, 137, 0},      {"3.6B", 32, 3072, 30, 2, 1, 64, 512, 138, 0},
    {"7.5B", 32, 4096, 36, 4, 1, 128, 512, 142, 0},     {"18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135, 0},
    {"39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138, 0},   {"76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140, 0},
    {"145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148, 0}, {"310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155, 0},
    {"529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163, 0}, {"1008B", 160, 25600, 128, 8, 64, 3072, 3072, 163, 0},
};

// Table 2: the same models on more cards, with Megatron's layout and with ZeRO stage 3.
const Row kMoreCards[] = {
    {"174.6B on 384", 96, 12288, 96, 8, 12, 384, 1536, 153, 1},  {"174.6B on 768", 96, 12288, 96, 8, 12, 768, 1536, 149, 1},
    {"174.6B on 1536", 96, 12288, 96, 8, 12, 1536, 1536, 141, 1}, {"529.6B on 560", 128, 20480, 105, 8, 35, 560, 2240, 171, 1},
    {"529.6B on 1120", 128, 20480, 105, 8, 35, 1120, 2240, 167, 1}, {"529.6B on 2240", 128, 20480, 105, 8, 35, 2240, 2240, 159, 1},
};

// Table 2 again: DeepSpeed's ZeRO stage 3 without model parallelism, where a rank sends and receives three times the model in every step.
const Row kStageThree[] = {
    {"174.6B on 384", 96, 12288, 96, 1, 1, 384, 1536, 144, 4, 3},  {"174.6B on 768", 96, 12288, 96, 1, 1, 768, 1536, 88, 2, 3},
    {"174.6B on 1536", 96, 12288, 96, 1, 1, 1536, 1536, 44, 1, 3}, {"529.6B on 640", 128, 20480, 105, 1, 1, 640, 2560, 138, 4, 3},
    {"529.6B on 1120", 128, 20480, 105, 1, 1, 1120, 2240, 98, 2, 3}, {"529.6B on 2240", 128, 20480, 105, 1, 1, 2240, 2240, 48, 1, 3},
};

// examples/plan/selene.json with another number of hosts: DGX A100, 8 cards of 80 GB.
Cluster selene(int64_t cards) {
  std::string text = read_file(std::filesystem::path(TRIREME_SOURCE_DIR) / "examples/plan/selene.json");
  const std::string hosts = "\"hosts\": 384";
  text.replace(text.find(hosts), hosts.size(), concat("\"hosts\": ", cards / 8));
  return parse_cluster(text, "selene.json");
}

Job job_of(const Row& row) {
  Job job;
  job.gpt.layers = row.layers;
  job.gpt.hidden = row.hidden;
  job.gpt.heads = row.heads;
  job.gpt.sequence_length = 2048;
  job.gpt.vocab_size = 51200;
  job.gpt.dropout = 0.1;
  job.batch = row.batch;
  job.base.compute = job.base.travel = estimate::Type::fp16;
  return job;
}

struct Best {
  Prediction prediction;
  double tflops = 0;
};

// With the axes of the table. Interleaving as often as layers allow, as the paper does where a stage has several layers.
std::optional<Best> best_of(const Row& row) {
  const Cluster cluster = selene(row.cards);
  const Job job = job_of(row);
  std::optional<Best> best;
  for (const int64_t micro : {1, 2, 4, 8}) {
    if (row.micro_batch != 0 && micro != row.micro_batch) {
      continue;
    }
    for (const int64_t chunks : {1, 2, 3}) {
      Layout layout{.pipe = row.pipe, .data = row.cards / row.tensor / row.pipe, .tensor = row.tensor, .zero_stage = row.zero_stage, .micro_batch = micro, .recompute = 1};
      if (row.layers % (row.pipe * chunks) != 0 || (chunks > 1 && row.pipe == 1)) {
        continue;
      }
      layout.chunks = chunks;
      layout.schedule = chunks > 1 ? pipeline::ScheduleKind::interleaved : pipeline::ScheduleKind::one_f_one_b;
      const Prediction prediction = predict(cluster, job, layout);
      if (prediction.refused.empty() && (!best || prediction.step_seconds < best->prediction.step_seconds)) {
        best = {prediction, published_flops(job.gpt, job.batch) / static_cast<double>(row.cards) / prediction.step_seconds / 1e12};
      }
    }
  }
  return best;
}

void expect_near(const Row& row, double tolerance) {
  const std::optional<Best> best = best_of(row);
  ASSERT_TRUE(best) << row.name << " does not fit";
  std::printf("%-16s published %5.0f, planned %5.0f TFLOP/s a card, %+5.1f %%; %s, %.1f s a step, bubble %.3f, %.1f GB a card\n", row.name, row.tflops, best->tflops,
              100 * (best->tflops / row.tflops - 1), describe(best->prediction.layout, job_of(row)).c_str(), best->prediction.step_seconds, best->prediction.bubble,
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

TEST(PublishedTest, StageThree) {
  for (const Row& row : kStageThree) {
    expect_near(row, 0.2);
  }
}

} // namespace
} // namespace trireme::plan
