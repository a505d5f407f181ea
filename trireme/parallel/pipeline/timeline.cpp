#include <trireme/parallel/pipeline/timeline.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace trireme::pipeline {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

class Simulation {
 public:
  Simulation(const std::vector<Program>& programs, const ScheduleShape& shape, const Costs& costs)
      : programs_(programs),
        shape_(shape),
        costs_(costs),
        next_(programs.size(), 0),
        now_(programs.size(), 0),
        activation_(size_t(shape.virtual_stages()) * shape.micro_batches, kNotYet),
        grad_(activation_.size(), kNotYet),
        spans_(programs.size()) {}

  // Returns the spans by stage, then by begin.
  std::vector<TimelineSpan> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t s = 0; s < programs_.size(); ++s) {
        while (next_[s] < programs_[s].size() && step(static_cast<int>(s))) {
          moved = true;
        }
      }
    }
    for (size_t s = 0; s < programs_.size(); ++s) {
      if (next_[s] < programs_[s].size()) {
        throw InputError("schedule", concat("stage ", s, " waits forever at instruction ", next_[s], " (",
                                            describe(programs_[s][next_[s]]), ')'));
      }
    }
    std::vector<TimelineSpan> all;
    for (const std::vector<TimelineSpan>& of_stage : spans_) {
      all.insert(all.end(), of_stage.begin(), of_stage.end());
    }
    return all;
  }

 private:
  double& cell(std::vector<double>& values, int virtual_stage, int micro_batch) {
    return values[size_t(virtual_stage) * shape_.micro_batches + micro_batch];
  }

  double cost(Op op, int virtual_stage) const {
    if (!costs_.parts.empty()) {
      const PartCosts& part = costs_.parts[virtual_stage];
      return op == Op::forward          ? part.forward
             : op == Op::backward       ? part.backward
             : op == Op::backward_input ? part.backward_input
                                        : part.backward_weight;
    }
    switch (op) {
      case Op::forward:
        return costs_.forward / shape_.chunks;
      case Op::backward:
        return costs_.backward / shape_.chunks;
      case Op::backward_input:
        return costs_.backward_input / shape_.chunks;
      case Op::backward_weight:
        return costs_.backward_weight / shape_.chunks;
      default:
        return 0;
    }
  }

  double transfer(Op op, int from) const {
    if (costs_.parts.empty()) {
      return costs_.transfer;
    }
    return op == Op::recv_activation ? costs_.parts[from].send_activation : costs_.parts[from].send_grad;
  }

  // Runs the next instruction of stage s unless its input does not exist yet.
  bool step(int s) {
    const Instruction& instruction = programs_[s][next_[s]];
    const auto [op, micro_batch, chunk, buffer] = instruction;
    const int v = shape_.virtual_stage(s, chunk);
    if (op == Op::recv_activation || op == Op::recv_grad) {
      const int from = op == Op::recv_activation ? v - 1 : v + 1;
      const bool outside = from < 0 || from >= shape_.virtual_stages();
      const double made = outside ? kNotYet : cell(op == Op::recv_activation ? activation_ : grad_, from, micro_batch);
      if (made == kNotYet) {
        return false;
      }
      now_[s] = std::max(now_[s], made + transfer(op, from));
    } else if (op == Op::forward || op == Op::backward || op == Op::backward_input || op == Op::backward_weight) {
      const double begin = now_[s];
      now_[s] += cost(op, v);
      spans_[s].push_back({s, op, micro_batch, chunk, begin, now_[s]});
      if (op == Op::forward) {
        cell(activation_, v, micro_batch) = now_[s];
      } else if (op != Op::backward_weight) {
        cell(grad_, v, micro_batch) = now_[s];
      }
    }
    ++next_[s];
    return true;
  }

  const std::vector<Program>& programs_;
  ScheduleShape shape_;
  Costs costs_;
  std::vector<size_t> next_;
  std::vector<double> now_;        // by stage
  std::vector<double> activation_; // when made, by virtual stage and micro-batch
  std::vector<double> grad_;
  std::vector<std::vector<TimelineSpan>> spans_; // by stage
};

std::vector<double> peak_in_flight(const Timeline& timeline) {
  const bool evaluation = std::all_of(timeline.spans.begin(), timeline.spans.end(),
                                      [](const TimelineSpan& span) { return span.op == Op::forward; });
  // A layer that cannot split its backward runs all of it at once, and no weight gradient follows.
  std::vector<std::tuple<int, int, int>> split;
  for (const TimelineSpan& span : timeline.spans) {
    if (span.op == Op::backward_weight) {
      split.emplace_back(span.stage, span.micro_batch, span.chunk);
    }
  }
  std::sort(split.begin(), split.end());
  const auto follows = [&](const TimelineSpan& span) {
    return std::binary_search(split.begin(), split.end(), std::tuple(span.stage, span.micro_batch, span.chunk));
  };
  std::vector<int> now(timeline.shape.stages, 0);
  std::vector<int> peak(timeline.shape.stages, 0);
  for (const TimelineSpan& span : timeline.spans) {
    if (span.op == Op::forward) {
      peak[span.stage] = std::max(peak[span.stage], ++now[span.stage]);
      now[span.stage] -= evaluation ? 1 : 0;
    } else if (span.op != Op::backward_input || !follows(span)) {
      --now[span.stage];
    }
  }
  std::vector<double> micro_batches;
  for (const int chunks : peak) {
    micro_batches.push_back(static_cast<double>(chunks) / timeline.shape.chunks);
  }
  return micro_batches;
}

} // namespace

Timeline simulate(const std::vector<Program>& programs, const ScheduleShape& shape, const Costs& costs) {
  check_shape(shape);
  if (programs.size() != static_cast<size_t>(shape.stages)) {
    throw InputError("schedule", concat("there are ", programs.size(), " programs for ", shape.stages, " stages"),
                     "Every stage needs one.");
  }
  for (const Program& program : programs) {
    for (const Instruction& instruction : program) {
      const bool inside = instruction.micro_batch >= 0 && instruction.micro_batch < shape.micro_batches &&
                          instruction.chunk >= 0 && instruction.chunk < shape.chunks;
      if (has_micro_batch(instruction.op) && !inside) {
        throw InputError("schedule", concat("the schedule's shape has no ", describe(instruction)),
                         "check_schedule() explains it.");
      }
    }
  }
  if (!costs.parts.empty() && costs.parts.size() != static_cast<size_t>(shape.virtual_stages())) {
    throw InputError("schedule",
                     concat("got the costs of ", costs.parts.size(), " parts for ", shape.virtual_stages(), " parts"));
  }
  Timeline timeline;
  timeline.shape = shape;
  timeline.unit = "units";
  timeline.spans = Simulation(programs, shape, costs).run();
  summarize(timeline);
  return timeline;
}

void summarize(Timeline& timeline) {
  std::vector<TimelineSpan>& spans = timeline.spans;
  const auto before = [](const TimelineSpan& a, const TimelineSpan& b) {
    return std::tie(a.stage, a.begin, a.end) < std::tie(b.stage, b.begin, b.end);
  };
  if (!std::is_sorted(spans.begin(), spans.end(), before)) { // those of simulate() are sorted
    std::sort(spans.begin(), spans.end(), before);
  }
  double first = kNotYet;
  double last = -kNotYet;
  double busy = 0;
  for (const TimelineSpan& span : spans) {
    first = std::min(first, span.begin);
    last = std::max(last, span.end);
    busy += span.end - span.begin;
  }
  for (TimelineSpan& span : spans) {
    span.begin -= first;
    span.end -= first;
  }
  timeline.total = spans.empty() ? 0 : last - first;
  timeline.bubble = timeline.total > 0 ? std::max(0.0, 1 - busy / (timeline.shape.stages * timeline.total)) : 0;
  timeline.peak_in_flight = peak_in_flight(timeline);
}

} // namespace trireme::pipeline
