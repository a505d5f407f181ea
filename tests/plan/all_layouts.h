#pragma once

#include <trireme/plan/layout.h>

#include <cstdint>
#include <vector>

namespace trireme::plan {

/// Every layout that a search may consider before anything is moved, without any pruning.
inline std::vector<Layout> all_layouts(int64_t ranks, const Job& job, int64_t most_micro_batch) {
  using Kind = pipeline::ScheduleKind;
  struct Schedule {
    Kind kind;
    int64_t chunks;
  };
  std::vector<Layout> out;
  const auto add = [&](Layout layout) {
    const int last_stage = layout.gradient_ranks() > 1 ? 3 : 0;
    for (layout.zero_stage = 0; layout.zero_stage <= last_stage && why_impossible(job, layout).empty();
         ++layout.zero_stage) {
      out.push_back(layout);
    }
  };
  for (int64_t tensor = 1; tensor <= ranks; ++tensor) {
    for (int64_t context = 1; context * tensor <= ranks; ++context) {
      for (int64_t pipe = 1; pipe * context * tensor <= ranks; ++pipe) {
        if (ranks % (pipe * context * tensor) != 0) {
          continue;
        }
        std::vector<Schedule> schedules = {{Kind::one_f_one_b, 1}};
        if (pipe > 1) {
          schedules.push_back({Kind::zero_bubble, 1});
        }
        for (int64_t chunks = 2; pipe > 1 && chunks <= 8 && pipe * chunks <= job.model.layers; ++chunks) {
          if (chunks == 2 || job.model.layers % (pipe * chunks) == 0) {
            schedules.push_back({Kind::interleaved, chunks});
          }
        }
        Layout layout{.pipe = pipe, .data = ranks / (pipe * context * tensor), .context = context, .tensor = tensor};
        for (layout.micro_batch = 1; layout.micro_batch <= most_micro_batch; ++layout.micro_batch) {
          for (const Schedule& schedule : schedules) {
            layout.schedule = schedule.kind;
            layout.chunks = schedule.chunks;
            for (const int64_t recompute : recompute_intervals(job, pipe)) {
              layout.recompute = recompute;
              layout.sequence_parallel = false;
              add(layout);
              layout.sequence_parallel = true;
              if (tensor > 1) {
                add(layout);
              }
            }
          }
        }
      }
    }
  }
  return out;
}

} // namespace trireme::plan
