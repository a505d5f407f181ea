#pragma once

#include <trireme/config/engine_config.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/step_lines.h>
#include <trireme/monitor/tensorboard_writer.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace trireme::engine {

/// Reports on rank 0 what a DeepSpeed configuration asks for: steps_per_print, wall_clock_breakdown, memory_breakdown,
/// tensorboard and csv_monitor.
///
/// CSV: one file per metric, "<output_path>/<job_name>/<metric>.csv", with lines "step,value". An empty output_path
/// means "<run folder>/csv_monitor" or "<run folder>/tensorboard"; the run folder is TRIREME_RUN_DIR, which `trireme
/// train` sets. A file that cannot be written is reported once and does not end the training. On a GPU a step's values
/// may be written after the next step (step_lines.h); what is printed waits for the step.
class StepReport {
 public:
  explicit StepReport(const config::EngineConfig& config);

  /// Errors: InputError, the same on every rank, for a monitor with an empty output_path if there is no run folder.
  static void check(const config::EngineConfig& config);

  /// Call it after every optimizer step.
  void step(const Engine& engine);

 private:
  void print(const Engine& engine) const;
  void write(const monitor::StepMetrics& m);

  std::optional<int64_t> every_;
  bool times_;
  bool memory_;
  std::optional<std::filesystem::path> csv_;
  std::unique_ptr<monitor::TensorBoardWriter> tensorboard_;
  bool complained_ = false;
  StepLines lines_{[this](const monitor::StepMetrics& m) { write(m); }};
};

} // namespace trireme::engine
