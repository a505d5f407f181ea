#pragma once

#include <trireme/monitor/metrics.h>
#include <trireme/monitor/terminal.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::monitor {

struct ProgressOptions {
  /// The last step of the run; 0 if unknown: then there is no bar and no remaining time.
  int64_t total_steps = 0;
  /// The last step before this start (resumed runs).
  int64_t first_step = 0;
  /// Output, its capabilities, and the clock; the defaults are stderr and the steady clock.
  std::function<void(std::string_view)> write;
  std::optional<Terminal> terminal;
  std::function<double()> clock;
};

/// Shows the progress of a run (rank 0 only).
///
/// On a terminal: one line, redrawn at most ten times per second and never wider than the window:
///   ━━━━━━━────────────  step 1200/3000  loss 1.812  val 1.790  43.2k tok/s  2 min 10 s left
/// Log lines (base/log.h) appear above it while a Progress lives. Other outputs get plain lines without escape codes:
/// the first, the last and at most one every five seconds.
///
/// Thread-safe. Cost of an update that is not shown: well below a microsecond.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  /// Leaves the last state on the screen, as finish() does.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Takes step, loss, val_loss, val_accuracy and the throughput. Validation values stay until newer ones arrive.
  void update(const StepMetrics& metrics);
  /// Shows at once the activity between steps: "evaluating", "saving checkpoint"; "" when it is over. Live line only.
  void status(const std::string& text);
  /// Prints a line above the live one. Adds a missing line end.
  void say(std::string_view line);
  /// Shows the last state and ends the line. Later calls do nothing.
  void finish();

 private:
  std::string live_line(double now) const;
  std::string plain_line(double now) const;
  std::optional<double> seconds_left(double now) const;
  void draw(double now);

  std::mutex mutex_;
  ProgressOptions options_;
  Terminal terminal_;
  StepMetrics shown_;
  std::string status_;
  double started_ = 0;
  double first_update_ = 0;
  int64_t first_update_step_ = -1;
  double last_draw_ = 0;
  int64_t last_drawn_step_ = -1;
  bool line_open_ = false;
  bool finished_ = false;
};

} // namespace trireme::monitor
