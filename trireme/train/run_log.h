#pragma once

#include <trireme/base/run_token.h>
#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/engine/engine.h>
#include <trireme/monitor/metrics.h>
#include <trireme/monitor/metrics_writer.h>
#include <trireme/monitor/progress.h>
#include <trireme/monitor/resources.h>
#include <trireme/monitor/tensorboard_writer.h>
#include <trireme/train/task.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace trireme::train {

/// Rank 0's output while training: the progress line, metrics.jsonl, TensorBoard
/// events, run.json and report.html. A file that cannot be written (a full disk) is
/// reported once and does not end the training. Errors of all functions: ReplacedError
/// when a later training has claimed the run folder (`token`); nothing is written
/// then.
class RunLog {
 public:
  RunLog(const std::filesystem::path& folder, const config::RunConfig& run, const Task& task, engine::Engine& engine,
         const data::Datasets& datasets, std::optional<int64_t> resumed_step, const RunToken& token);
  ~RunLog();

  void step(const monitor::StepMetrics& metrics);
  void status(const char* text);
  /// Ends the progress line, writes the report and prints the result with `sample`.
  void finish(const std::string& sample);
  /// Writes the report of a running run, in case nothing follows; seldom if that takes long. step() calls it too, every
  /// ten seconds.
  void running(int64_t step);
  /// Ends the progress line and writes the report of a run that will continue later.
  void interrupted(const std::string& status);

 private:
  using Clock = std::chrono::steady_clock;
  /// Returns whether everything was written.
  bool write(const std::function<void()>& action);
  void check_token();
  std::string describe_mixture() const;
  void write_report(const std::string& status, const std::string& sample);

  const RunToken& token_;
  std::filesystem::path folder_;
  const config::RunConfig& run_;
  const Task& task_;
  engine::Engine& engine_;
  const data::Datasets& datasets_;
  monitor::MetricsWriter metrics_;
  monitor::TensorBoardWriter tensorboard_;
  std::optional<monitor::Progress> progress_;
  monitor::StepMetrics last_;
  double started_;
  int64_t parameters_;
  bool complained_ = false;
  double step_ms_ = 0; ///< sums over the steps of this run
  double comm_wait_ms_ = 0;
  int64_t host_syncs_ = 0;
  int64_t steps_ = 0;
  Clock::time_point reported_; ///< when the report was last written
  Clock::duration report_took_{0};
};

} // namespace trireme::train
