#pragma once

#include "clusters.h"

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/plan/search.h>

#include <algorithm>
#include <optional>

/// Runs that were published, and the machine that they ran on.
namespace trireme::plan {

/// Operations per step by Narayanan et al. 2021, arXiv:2104.04473. 96 B l L h^2 (1 + L / 6h + V / 16 l h) includes
/// recomputation. Their "model" operations do not: three quarters of it, except for the head.
inline double published_flops(const models::TransformerShape& gpt, int64_t batch) {
  const auto l = static_cast<double>(gpt.layers);
  const auto h = static_cast<double>(gpt.hidden);
  const auto length = static_cast<double>(gpt.sequence_length);
  return 96 * static_cast<double>(batch) * length * l * h * h *
         (1 + length / (6 * h) + static_cast<double>(gpt.vocab_size) / (16 * l * h));
}

/// A row of Narayanan et al. 2021, arXiv:2104.04473, table 1 (weak scaling) or 2: GPT with a vocabulary of 51,200,
/// sequences of 2,048, mixed precision, all activations recomputed.
struct Row {
  const char* name;
  int64_t heads, hidden, layers, tensor, pipe, cards, batch;
  double tflops; ///< achieved by a card, operations counted with recomputation
  int64_t micro_batch;
  int64_t chunks = 0; ///< 0: not published, the plan chooses
  int zero_stage = 0;
};

// Micro-batches and chunks: Megatron-LM, examples/academic_paper_scripts/sc21/run_table_1.sh.

inline const Row kWeakScaling[] = {
    {"1.7B", 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1},         {"3.6B", 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1},
    {"7.5B", 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1},        {"18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1},
    {"39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1},       {"76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3},
    {"145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2},    {"310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2},
    {"529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3}, {"1008B", 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1},
};

// examples/plan/selene.json with another number of hosts: DGX A100, 8 cards of 80 GB.
inline Cluster selene(int64_t cards) {
  std::string text = read_file(std::filesystem::path(test::source_dir()) / "examples/plan/selene.json");
  const std::string hosts = "\"hosts\": 384";
  text.replace(text.find(hosts), hosts.size(), concat("\"hosts\": ", cards / 8));
  return parse_cluster(text, "selene.json");
}

inline Job job_of(const Row& row) {
  Job job = gpt_job(row.layers, row.hidden, row.heads, 2048, 51200, row.batch);
  job.model.dropout = 0.1;
  job.base.precision.compute = estimate::Type::fp16;
  return job;
}

struct Best {
  Prediction prediction;
  double tflops = 0;
};

// With the axes of the table.
inline std::optional<Best> best_of(const Row& row) {
  Cluster cluster = selene(row.cards);
  if (row.zero_stage == 3) {
    cluster.hierarchical = false;
    cluster.overlap = 0;
  }
  const Job job = job_of(row);
  std::optional<Best> best;
  for (const int64_t chunks : {1, 2, 3}) {
    Layout layout{.pipe = row.pipe,
                  .data = row.cards / row.tensor / row.pipe,
                  .tensor = row.tensor,
                  .zero_stage = row.zero_stage,
                  .micro_batch = row.micro_batch,
                  .recompute = 1};
    if ((row.chunks != 0 && chunks != row.chunks) || row.layers % (row.pipe * chunks) != 0) {
      continue;
    }
    layout.chunks = chunks;
    layout.schedule = chunks > 1 ? pipeline::ScheduleKind::interleaved : pipeline::ScheduleKind::one_f_one_b;
    const Prediction prediction = predict(cluster, job, layout);
    if (prediction.refused.empty() && (!best || prediction.step_seconds < best->prediction.step_seconds)) {
      best = {prediction,
              published_flops(job.model, job.batch) / static_cast<double>(row.cards) / prediction.step_seconds / 1e12};
    }
  }
  return best;
}

} // namespace trireme::plan
