#include <trireme/parallel/pipeline/timeline.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace trireme::pipeline {
namespace {

using nlohmann::json;

constexpr double kLatestUs = 1e15; // 30 years; larger values are not times
constexpr int kMost = 1'000'000;   // largest micro-batch and chunk that a name may hold
using Step = std::vector<TimelineSpan>;

struct Rank {
  Step spans;
  std::optional<std::pair<int, int>> stage; // and the number of stages
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw InputError("trace", concat(path.string(), ": ", why), "Record one with: trireme train RUN.json --trace 3");
}

// "F 3 0", exactly.
std::optional<TimelineSpan> parse_name(const std::string& name) {
  constexpr std::pair<char, Op> kKinds[] = {
      {'F', Op::forward}, {'B', Op::backward}, {'I', Op::backward_input}, {'W', Op::backward_weight}};
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const auto& known) { return !name.empty() && known.first == name[0]; });
  if (kind == std::end(kKinds) || name.size() < 5 || name[1] != ' ') {
    return std::nullopt;
  }
  TimelineSpan span;
  span.op = kind->second;
  const char* end = name.data() + name.size();
  const auto first = std::from_chars(name.data() + 2, end, span.micro_batch);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') {
    return std::nullopt;
  }
  const auto second = std::from_chars(first.ptr + 1, end, span.chunk);
  const bool sane = span.micro_batch >= 0 && span.micro_batch < kMost && span.chunk >= 0 && span.chunk < kMost;
  return second.ec == std::errc() && second.ptr == end && sane ? std::optional(span) : std::nullopt;
}

// "stage 1 of 4"
std::optional<std::pair<int, int>> parse_stage(const std::string& name) {
  int stage = 0;
  int stages = 0;
  int used = 0;
  const bool whole = std::sscanf(name.c_str(), "stage %5d of %5d%n", &stage, &stages, &used) == 2 &&
                     used == static_cast<int>(name.size());
  return whole && stage >= 0 && stage < stages ? std::optional(std::pair(stage, stages)) : std::nullopt;
}

std::map<int64_t, Rank> read_ranks(const std::filesystem::path& path) {
  const json trace = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
    refuse(path, "not a Chrome trace: expected JSON with \"traceEvents\"");
  }
  std::map<int64_t, Rank> ranks;
  for (const json& event : trace["traceEvents"]) {
    const auto number = [&](const char* key) { return event.contains(key) && event[key].is_number(); };
    if (!event.is_object() || !event.contains("name") || !event["name"].is_string() || !event.contains("pid") ||
        !event["pid"].is_number_integer() || !number("ts")) {
      continue;
    }
    const auto& name = event["name"].get_ref<const std::string&>();
    const auto pid = event["pid"].get<int64_t>();
    if (const auto stage = parse_stage(name)) {
      ranks[pid].stage = stage;
    }
    std::optional<TimelineSpan> span = parse_name(name);
    if (span && number("dur") && std::abs(event["ts"].get<double>()) < kLatestUs &&
        event["dur"].get<double>() < kLatestUs) {
      span->begin = event["ts"].get<double>() / 1000;
      span->end = span->begin + std::max(0.0, event["dur"].get<double>()) / 1000;
      ranks[pid].spans.push_back(*span);
    }
  }
  std::erase_if(ranks, [](const auto& item) { return item.second.spans.empty(); });
  if (ranks.empty()) {
    refuse(path, "there are no pipeline spans in it (\"F 0 0\", \"B 0 0\", ...)");
  }
  return ranks;
}

// Steps of training. A computation that repeats begins the next one; evaluations have no
// backward.
std::vector<Step> training_steps(Step spans) {
  std::stable_sort(spans.begin(), spans.end(),
                   [](const TimelineSpan& a, const TimelineSpan& b) { return a.begin < b.begin; });
  std::vector<Step> steps;
  std::set<std::tuple<Op, int, int>> seen;
  for (const TimelineSpan& span : spans) {
    if (steps.empty() || !seen.insert({span.op, span.micro_batch, span.chunk}).second) {
      steps.emplace_back();
      seen = {{span.op, span.micro_batch, span.chunk}};
    }
    steps.back().push_back(span);
  }
  std::erase_if(steps, [](const Step& step) {
    return std::all_of(step.begin(), step.end(), [](const auto& span) { return span.op == Op::forward; });
  });
  return steps;
}

// The shape, if every micro-batch ran forward and backward in every chunk.
std::optional<ScheduleShape> complete_shape(const Step& step) {
  std::set<std::pair<int, int>> forwards;
  std::set<std::pair<int, int>> backwards;
  ScheduleShape shape;
  for (const TimelineSpan& span : step) {
    shape.micro_batches = std::max(shape.micro_batches, span.micro_batch + 1);
    shape.chunks = std::max(shape.chunks, span.chunk + 1);
    if (span.op == Op::forward) {
      forwards.insert({span.micro_batch, span.chunk});
    } else if (span.op != Op::backward_weight) {
      backwards.insert({span.micro_batch, span.chunk});
    }
  }
  const bool complete =
      forwards == backwards && forwards.size() == static_cast<size_t>(shape.micro_batches) * shape.chunks;
  return complete ? std::optional(shape) : std::nullopt;
}

// The lowest rank of each stage.
std::vector<std::vector<Step>> steps_of_stages(const std::filesystem::path& path, std::map<int64_t, Rank> ranks) {
  const bool named =
      std::all_of(ranks.begin(), ranks.end(), [](const auto& item) { return item.second.stage.has_value(); });
  const int expected = named ? ranks.begin()->second.stage->second : static_cast<int>(ranks.size());
  std::map<int, std::vector<Step>> by_stage;
  for (auto& [pid, rank] : ranks) {
    const int stage = named ? rank.stage->first : static_cast<int>(by_stage.size());
    if (by_stage.count(stage) == 0) {
      by_stage[stage] = training_steps(std::move(rank.spans));
    }
  }
  std::vector<std::vector<Step>> stages;
  for (auto& [stage, steps] : by_stage) {
    if (stage != static_cast<int>(stages.size())) {
      break;
    }
    stages.push_back(std::move(steps));
  }
  if (static_cast<int>(stages.size()) != expected) {
    refuse(path, concat("it has no spans of stage ", stages.size(), " of ", expected, "; use the trace of all ranks"));
  }
  return stages;
}

} // namespace

Timeline from_trace(const std::filesystem::path& path) {
  const std::vector<std::vector<Step>> stages = steps_of_stages(path, read_ranks(path));
  size_t steps = stages[0].size();
  for (const std::vector<Step>& stage : stages) {
    steps = std::min(steps, stage.size());
  }
  for (size_t step = steps; step-- > 0;) {
    Timeline timeline;
    const std::optional<ScheduleShape> shape = complete_shape(stages[0][step]);
    if (!shape) {
      continue;
    }
    bool whole = true;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      whole = whole && complete_shape(stages[stage][step]) == shape;
      for (TimelineSpan span : stages[stage][step]) {
        span.stage = static_cast<int>(stage);
        timeline.spans.push_back(span);
      }
    }
    if (whole) {
      timeline.shape = *shape;
      timeline.shape.stages = static_cast<int>(stages.size());
      timeline.unit = "ms";
      summarize(timeline);
      return timeline;
    }
  }
  refuse(path, "no step of training was recorded to its end on all stages");
}

} // namespace trireme::pipeline
