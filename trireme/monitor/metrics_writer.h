#pragma once

#include <trireme/monitor/metrics.h>

#include <filesystem>
#include <optional>

namespace trireme::monitor {

/// Appends one line per step to metrics.jsonl (rank 0 only). Each line is one write(2), so all steps before a crash of
/// the program are in the file.
///
/// Fresh run: a file left by an earlier run is kept as metrics.previous.jsonl.
/// Resumed run: lines with a later step than `resumed_step`, and lines cut off by a crash,
/// are dropped (the file is replaced atomically), so that no step appears twice.
///
/// Cost: about 10 us per line. Errors: Error with the reason when a line cannot be written; a partly written line is
/// removed, so the file stays readable and the call may be repeated.
class MetricsWriter {
 public:
  explicit MetricsWriter(const std::filesystem::path& path, std::optional<int64_t> resumed_step = std::nullopt);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Writes the step. Errors: Error if the step is not later than the last one.
  void write(StepMetrics metrics);

  /// The last step in the file, -1 if there is none.
  int64_t last_step() const { return last_step_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t last_step_ = -1;
};

} // namespace trireme::monitor
