#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::monitor {

/// The lane of a span in the drawing; every rank has one of each.
enum class Lane : uint8_t { compute, communication, data, storage };

/// Records spans of this rank's work, for ui.perfetto.dev or chrome://tracing.
///
///   tracer().start(rank);                       // off until then
///   { Span span("forward"); ... }
///   tracer().write(folder / trace_part_name(rank));
///   merge_traces(parts, folder / "trace.json"); // rank 0, afterwards
///
/// Thread-safe. Cost: one relaxed load and branch for a Span while off; a few hundred ns while on.
class Tracer {
 public:
  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  /// Clears earlier events and starts. After `max_events` events further ones are only counted.
  /// An event takes about 150 bytes of JSON.
  void start(int rank, size_t max_events = 1 << 18);
  void stop();

  /// Adds a span measured by the caller in now_ns() time, such as an asynchronous collective. `bytes` below zero: none.
  /// Does nothing while off.
  void add(Lane lane, std::string_view name, int64_t begin_ns, int64_t end_ns, int64_t bytes = -1);

  /// Sets how far this rank's clock is behind rank 0's, from clock_offset_ns(). 0 on one host.
  void set_clock_offset_ns(int64_t offset_ns);

  /// Writes the part of this rank: valid Chrome trace JSON in microseconds of the rank's own clock, with the offset as
  /// metadata. Replaces `path` atomically. Errors: Error when it cannot be written.
  void write(const std::filesystem::path& path) const;

  size_t num_events() const;
  size_t num_dropped() const;

  /// Nanoseconds of the steady clock.
  static int64_t now_ns() noexcept;

 private:
  struct Event {
    std::string name;
    int64_t begin_ns;
    int64_t end_ns;
    int64_t bytes;
    Lane lane;
  };

  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  size_t max_events_ = 0;
  size_t num_dropped_ = 0;
  int64_t clock_offset_ns_ = 0;
  int rank_ = 0;
};

/// The tracer of this process.
inline constinit Tracer process_tracer;
inline Tracer& tracer() noexcept {
  return process_tracer;
}

/// Records the time from its construction to the end of its scope. `name` must live as long as the span.
class Span {
 public:
  explicit Span(const char* name, Lane lane = Lane::compute, int64_t bytes = -1) noexcept
      : name_(tracer().on() ? name : nullptr), bytes_(bytes), lane_(lane) {
    if (name_ != nullptr) {
      begin_ns_ = Tracer::now_ns();
    }
  }
  ~Span() {
    if (name_ != nullptr) {
      end();
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void end() noexcept;

  const char* name_;
  int64_t begin_ns_ = 0;
  int64_t bytes_;
  Lane lane_;
};

/// One exchange with rank 0: own clock at the request, rank 0's clock at its response, own clock at the
/// arrival.
struct ClockSample {
  int64_t sent_ns;
  int64_t remote_ns;
  int64_t received_ns;
};

/// Computes the offset from this rank's clock to rank 0's, from the exchange with the shortest round trip (Cristian
/// 1989); wrong by at most half of that round trip. 0 without samples.
int64_t clock_offset_ns(const std::vector<ClockSample>& samples);

/// "trace.rank3.json".
std::string trace_part_name(int rank);

/// Merges the ranks' parts into one trace on rank 0's clock that starts at time 0: one process per rank, sorted by
/// rank. Errors: InputError naming a missing or invalid part; Error when `out` cannot be written.
void merge_traces(const std::vector<std::filesystem::path>& parts, const std::filesystem::path& out);

} // namespace trireme::monitor
