// What the plan chooses first where the layout of a run was published: both, and their times. docs/plan.md has the
// table that this prints.
#include "published.h"

#include <tests/support/folders.h>
#include <trireme/base/units.h>

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace trireme::plan {
namespace {

std::string axes(const Layout& layout) {
  return concat(layout.tensor, " x ", layout.pipe, " x ", layout.data,
                layout.context > 1 ? concat(", context ", layout.context) : "");
}

std::string others(const Layout& layout) {
  return concat("micro-batch ", layout.micro_batch,
                layout.chunks > 1                                        ? concat(", ", layout.chunks, " chunks")
                : layout.schedule == pipeline::ScheduleKind::zero_bubble ? ", zero-bubble"
                                                                         : "",
                layout.recompute > 0 ? ", recomputed" : "", layout.sequence_parallel ? ", SP" : "",
                layout.zero_stage > 0 ? concat(", ZeRO ", layout.zero_stage) : "");
}

double tflops(const Row& row, const Prediction& prediction) {
  const Job job = job_of(row);
  return published_flops(job.model, job.batch) / static_cast<double>(row.cards) / prediction.step_seconds / 1e12;
}

// The best with what the runs of the paper had: pipeline and tensor ranks, 1f1b and interleaved stages, everything
// recomputed, replicas that have all of a stage.
Prediction best_with_their_means(const Row& row) {
  struct Candidate {
    Layout layout;
    double least;
  };
  const Cluster cluster = selene(row.cards);
  const Job job = job_of(row);
  Shared shared(job);
  std::vector<Candidate> candidates;
  for (int64_t tensor = 1; tensor <= row.cards; ++tensor) {
    for (int64_t pipe = 1; row.cards % tensor == 0 && pipe <= row.cards / tensor; ++pipe) {
      for (const int64_t micro_batch : {1, 2, 4, 8, 16}) {
        Layout layout{.pipe = pipe,
                      .data = row.cards / tensor / pipe,
                      .tensor = tensor,
                      .micro_batch = micro_batch,
                      .recompute = 1};
        if (layout.ranks() != row.cards || !why_impossible(job, layout).empty()) {
          continue;
        }
        const std::vector<LayerCost> costs = layer_costs(cluster, job, layout);
        for (layout.chunks = 1; layout.chunks <= 4; ++layout.chunks) {
          layout.schedule =
              layout.chunks > 1 ? pipeline::ScheduleKind::interleaved : pipeline::ScheduleKind::one_f_one_b;
          if ((layout.chunks == 1 || (pipe > 1 && row.layers % (pipe * layout.chunks) == 0)) &&
              why_impossible(job, layout).empty()) {
            candidates.push_back({layout, least_seconds(cluster, job, layout, costs, shared)});
          }
        }
      }
    }
  }
  std::ranges::sort(candidates, {}, &Candidate::least);
  Prediction best;
  for (const Candidate& candidate : candidates) {
    if (best.step_seconds > 0 && candidate.least >= best.step_seconds) {
      break;
    }
    Prediction prediction = predict(cluster, job, candidate.layout, shared);
    if (prediction.refused.empty() && (best.step_seconds == 0 || prediction.step_seconds < best.step_seconds)) {
      best = std::move(prediction);
    }
  }
  return best;
}

// The rows are those of the page.
TEST(FirstChoiceTest, TensorRanksStayInsideAHost) {
  const std::string page = read_file(std::filesystem::path(test::source_dir()) / "docs/plan.md");
  for (const Row& row : kWeakScaling) {
    const std::optional<Best> published = best_of(row);
    ASSERT_TRUE(published) << row.name;
    const Prediction same = best_with_their_means(row);
    ASSERT_GT(same.step_seconds, 0) << row.name;
    const Plan found = search(selene(row.cards), job_of(row));
    ASSERT_FALSE(found.best.empty()) << row.name;
    const Prediction& first = found.best.front();
    const auto column = [&](const Prediction& p) { return concat(axes(p.layout), "; ", others(p.layout)); };
    const auto whole = [](double number) { return std::to_string(std::lround(number)); };
    const auto seconds = [](double number) { return format_seconds(number); };
    const bool is_theirs = same.layout == published->prediction.layout;
    const std::string line = concat(
        "| ", row.name, " | ", row.cards, " | ", column(published->prediction), " | ", whole(row.tflops), " | ",
        whole(published->tflops), ", ", seconds(published->prediction.step_seconds), " | ",
        is_theirs ? "the same" : concat(column(same), ": ", whole(tflops(row, same)), ", ", seconds(same.step_seconds)),
        " | ", column(first), ": ", seconds(first.step_seconds), " |");
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    EXPECT_NE(page.find(line), std::string::npos) << "docs/plan.md has another row for " << row.name;
    for (const Prediction* const p : {&same, &first}) {
      const bool is_largest =
          &row == &kWeakScaling[std::size(kWeakScaling) - 1]; // its first has tensor ranks on two hosts
      EXPECT_LE(p->layout.tensor, is_largest ? 16 : 8) << row.name << ": " << describe(p->layout, job_of(row));
      EXPECT_LE(p->step_seconds, published->prediction.step_seconds * (1 + 1e-9)) << row.name;
    }
  }
}

// Figure 13 of the paper: 162.2 billion parameters on 64 GPUs, all of them pipeline or tensor ranks. Tensor ranks that
// fill a host were fastest: fewer leave a longer pipeline, more have their sums between hosts.
TEST(FirstChoiceTest, TensorRanksFillAHost) {
  for (const int64_t batch : {32, 128}) {
    const Row row = {"162.2B", 128, 20480, 32, 8, 8, 64, batch, 0, 1};
    int64_t fastest = 0;
    double least = 0;
    for (const int64_t tensor : {2, 4, 8, 16, 32}) {
      const Prediction p =
          predict(selene(64), job_of(row), {.pipe = 64 / tensor, .tensor = tensor, .micro_batch = 1, .recompute = 1});
      ASSERT_EQ(p.refused, "") << tensor;
      std::printf("batch %ld, tensor %ld, pipe %ld: %.0f TFLOP/s a GPU\n", static_cast<long>(batch),
                  static_cast<long>(tensor), static_cast<long>(64 / tensor), tflops(row, p));
      if (least == 0 || p.step_seconds < least) {
        least = p.step_seconds;
        fastest = tensor;
      }
    }
    EXPECT_EQ(fastest, 8) << batch;
  }
}

} // namespace
} // namespace trireme::plan
