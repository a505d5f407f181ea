// The simulated step of ZeRO 3: parameters are gathered for every pass that uses them.
#include "multiplying.h"

#include <trireme/base/error.h>
#include <trireme/plan/estimate/traffic.h>
#include <trireme/plan/predict.h>
#include <trireme/plan/programs.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::plan {
namespace {

using pipeline::ScheduleKind;

TEST(PredictZero3Test, ZeroThreeGathersForEveryPass) {
  Job one = job();
  one.base.zero.param_persistence_threshold = 0;
  const Cluster cluster = multiplying(2, 0);
  const double second = predict(cluster, one, {.data = 2, .zero_stage = 2, .micro_batch = 4}).step_seconds;
  const double third = predict(cluster, one, {.data = 2, .zero_stage = 3, .micro_batch = 4}).step_seconds;
  // Instead of one gather of the parameters at the end one for forward and nearly one for backward.
  const double gather = 4 * (4.0 * (12 * 64 * 64 + 13 * 64) + (100 + 16 + 2) * 64) / 2 / 1e6;
  EXPECT_GT(third - second, 0.5 * gather);
  EXPECT_LT(third - second, 1.05 * gather);
}

int64_t along_data(const estimate::Run& run) {
  int64_t most = 0;
  for (const estimate::StageTraffic& stage : estimate::traffic_of(run)) {
    int64_t sum = 0;
    for (const estimate::Item& item : stage.items) {
      sum += item.axis == "data" ? item.bytes : 0;
    }
    most = std::max(most, sum);
  }
  return most;
}

// The bytes and the memory of a plan are those of the schedule's whole program.
TEST(PredictZero3Test, ZeroThreeGathersForAllChunks) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::interleaved, 2),
                                     {ScheduleKind::interleaved, 4},
                                     {ScheduleKind::one_f_one_b, 1},
                                     {ScheduleKind::zero_bubble, 1}}) {
    for (const int64_t pipe : {2, 3}) {
      for (const int64_t micro_batches : {2, 9, 20, 33}) {
        Job one = job(12, 2 * micro_batches);
        one.base.zero.param_persistence_threshold = 0;
        const Layout layout{.pipe = pipe, .data = 2, .zero_stage = 3, .schedule = kind, .chunks = chunks};
        Shared shared(one);
        estimate::Run run = run_of(one, layout, shared);
        run.programs.assign(1, estimate::Run::Programs{micro_batches, {}});
        for (const pipeline::Program& program : pipeline::make_programs(kind, shape_of(one, layout))) {
          run.programs.front().stages.push_back(phases_of(program));
        }
        const Prediction planned = predict(multiplying(2 * pipe), one, layout);
        const std::string which =
            concat(pipeline::schedule_name(kind), ' ', chunks, " on ", pipe, " x ", micro_batches);
        const auto data = std::find_if(planned.traffic.begin(), planned.traffic.end(),
                                       [](const AxisBytes& axis) { return axis.axis == "data"; });
        ASSERT_NE(data, planned.traffic.end());
        EXPECT_EQ(data->bytes, along_data(run)) << which;
        int64_t most = 0;
        for (const estimate::StageMemory& memory : estimate::memory_of(run)) {
          most = std::max(most, memory.peak_on_device());
        }
        EXPECT_EQ(planned.memory_bytes, most) << which;
        if (chunks > 1) {
          run.programs.clear();
          EXPECT_GT(data->bytes, along_data(run)) << which << ": the first chunk alone";
        }
      }
    }
  }
}

TEST(PredictZero3Test, ZeroThreeInAPipelineGathersWhatIsNotKept) {
  Job one = job();
  one.base.zero.param_persistence_threshold = 0;
  const Cluster cluster = multiplying(4, 0);
  const double second = predict(cluster, one, {.pipe = 2, .data = 2, .zero_stage = 2, .micro_batch = 1}).step_seconds;
  const double third = predict(cluster, one, {.pipe = 2, .data = 2, .zero_stage = 3, .micro_batch = 1}).step_seconds;
  EXPECT_GT(third, 1.05 * second);
}

} // namespace
} // namespace trireme::plan
