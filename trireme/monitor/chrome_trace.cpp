#include <trireme/monitor/chrome_trace.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/monitor/html.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

namespace trireme::monitor {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kLaneNames[] = {"compute", "communication", "data", "storage"};
constexpr int kRowsPerLane = 100;

double microseconds(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

/// The rows of one lane. Viewers need the spans of a row to nest or be disjoint, so a span that crosses another (two
/// collectives in flight) goes one row down.
class Rows {
 public:
  /// Spans come sorted by begin, longer first. The last row takes all others.
  int place(int64_t begin_ns, int64_t end_ns) {
    for (size_t row = 0; row < kRowsPerLane; ++row) {
      if (row == open_ends_.size()) {
        open_ends_.emplace_back();
      }
      auto& open = open_ends_[row];
      while (!open.empty() && open.back() <= begin_ns) {
        open.pop_back();
      }
      if (open.empty() || end_ns <= open.back()) {
        open.push_back(end_ns);
        return static_cast<int>(row);
      }
    }
    return kRowsPerLane - 1;
  }

 private:
  std::vector<std::vector<int64_t>> open_ends_;
};

ordered_json metadata(const char* kind, int rank, int tid, const char* key, const ordered_json& value) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", tid}, {"args", {{key, value}}}};
}

/// Events are written as text: a JSON tree would take ten times the memory.
template <typename Json>
void append_line(std::string& list, const Json& event) {
  list += list.empty() ? "\n" : ",\n";
  list += event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string trace_text(const ordered_json& about, const std::string& list) {
  return concat("{\"displayTimeUnit\":\"ms\",\"otherData\":", about.dump(), ",\"traceEvents\":[", list, "\n]}\n");
}

[[noreturn]] void refuse(const std::filesystem::path& part, const std::string& why) {
  throw InputError("trace", concat(part.string(), " is not a trace part of a rank: ", why),
                   "Leave it out, or run with tracing again.");
}

struct RankTrace {
  json trace;
  int64_t rank = 0;
  double offset_us = 0;
};

RankTrace read_part(const std::filesystem::path& path) {
  RankTrace part;
  const std::string content = read_file(path);
  part.trace = json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (part.trace.is_discarded()) {
    refuse(path, "it is cut off or not JSON");
  }
  const json empty;
  const auto member = [&](const json& object, const char* key) -> const json& {
    return object.is_object() && object.contains(key) ? object.at(key) : empty;
  };
  const json& about = member(part.trace, "otherData");
  const json& rank = member(about, "rank");
  const json& offset = member(about, "clock_offset_us");
  if (!rank.is_number_integer() || !offset.is_number()) {
    refuse(path, "\"otherData\" lacks rank or clock_offset_us");
  }
  const json& events = member(part.trace, "traceEvents");
  if (!events.is_array()) {
    refuse(path, "\"traceEvents\" is missing");
  }
  for (const json& event : events) {
    if (!event.is_object() || (event.contains("ts") && !event["ts"].is_number())) {
      refuse(path, "\"traceEvents\" has an invalid entry");
    }
  }
  part.rank = rank.get<int64_t>();
  part.offset_us = offset.get<double>();
  return part;
}

} // namespace

int64_t Tracer::now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Tracer::start(int rank, size_t max_events) {
  const std::lock_guard lock(mutex_);
  events_.clear();
  num_dropped_ = 0;
  clock_offset_ns_ = 0;
  rank_ = rank;
  max_events_ = max_events;
  on_ = true;
}

void Tracer::stop() {
  on_ = false;
}

void Tracer::add(Lane lane, std::string_view name, int64_t begin_ns, int64_t end_ns, int64_t bytes) {
  if (!on()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (events_.size() >= max_events_) {
    ++num_dropped_;
    return;
  }
  events_.push_back({std::string(name), begin_ns, std::max(begin_ns, end_ns), bytes, lane});
}

void Tracer::set_clock_offset_ns(int64_t offset_ns) {
  const std::lock_guard lock(mutex_);
  clock_offset_ns_ = offset_ns;
}

size_t Tracer::num_events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

size_t Tracer::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void Tracer::write(const std::filesystem::path& path) const {
  std::unique_lock lock(mutex_);
  std::vector<Event> events = events_;
  const int64_t offset_ns = clock_offset_ns_;
  const size_t dropped = num_dropped_;
  const int rank = rank_;
  lock.unlock();

  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  Rows rows[std::size(kLaneNames)];
  std::map<int, std::string> row_names;
  std::string list;
  for (const Event& event : events) {
    const auto lane = static_cast<int>(event.lane);
    const int row = rows[lane].place(event.begin_ns, event.end_ns);
    const int tid = lane * kRowsPerLane + row;
    row_names[tid] = row == 0 ? kLaneNames[lane] : concat(kLaneNames[lane], ' ', row + 1);
    ordered_json entry = {
        {"ph", "X"},  {"name", clean_utf8(event.name)},     {"pid", rank},
        {"tid", tid}, {"ts", microseconds(event.begin_ns)}, {"dur", microseconds(event.end_ns - event.begin_ns)}};
    if (event.bytes >= 0) {
      entry["args"] = {{"bytes", event.bytes}};
    }
    append_line(list, entry);
  }
  append_line(list, metadata("process_name", rank, 0, "name", concat("rank ", rank)));
  append_line(list, metadata("process_sort_index", rank, 0, "sort_index", rank));
  for (const auto& [tid, name] : row_names) {
    append_line(list, metadata("thread_name", rank, tid, "name", name));
    append_line(list, metadata("thread_sort_index", rank, tid, "sort_index", tid));
  }
  const ordered_json about = {
      {"rank", rank}, {"clock_offset_us", microseconds(offset_ns)}, {"dropped_events", dropped}};
  write_file_atomically(path, trace_text(about, list));
}

void Span::end() noexcept {
  try {
    tracer().add(lane_, name_, begin_ns_, Tracer::now_ns(), bytes_);
  } catch (const std::bad_alloc&) {
    // A failed trace must not end the run.
  }
}

int64_t clock_offset_ns(const std::vector<ClockSample>& samples) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  int64_t offset = 0;
  for (const ClockSample& sample : samples) {
    const int64_t round_trip = sample.received_ns - sample.sent_ns;
    if (round_trip >= 0 && round_trip < shortest) {
      shortest = round_trip;
      offset = sample.remote_ns - (sample.sent_ns + round_trip / 2);
    }
  }
  return offset;
}

std::string trace_part_name(int rank) {
  return concat("trace.rank", rank, ".json");
}

void merge_traces(const std::vector<std::filesystem::path>& parts, const std::filesystem::path& out) {
  // Two passes, one part in memory at a time.
  std::vector<std::pair<int64_t, std::filesystem::path>> by_rank;
  double earliest = std::numeric_limits<double>::infinity();
  for (const auto& path : parts) {
    const RankTrace part = read_part(path);
    by_rank.emplace_back(part.rank, path);
    for (const json& event : part.trace["traceEvents"]) {
      if (event.contains("ts")) {
        earliest = std::min(earliest, event["ts"].get<double>() + part.offset_us);
      }
    }
  }
  std::sort(by_rank.begin(), by_rank.end());
  std::string list;
  for (const auto& [rank, path] : by_rank) {
    RankTrace part = read_part(path);
    for (json& event : part.trace["traceEvents"]) {
      if (event.contains("ts")) {
        event["ts"] = event["ts"].get<double>() + part.offset_us - earliest;
      }
      append_line(list, event);
    }
  }
  write_file_atomically(out, trace_text({{"ranks", parts.size()}}, list));
}

} // namespace trireme::monitor
