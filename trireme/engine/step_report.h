#pragma once

#include <trireme/config/engine_config.h>
#include <trireme/engine/engine.h>
#include <trireme/monitor/tensorboard_writer.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace trireme::engine {

/// What a DeepSpeed configuration wants told while training, on rank 0: steps_per_print,
/// wall_clock_breakdown, memory_breakdown, tensorboard and csv_monitor.
///
/// CSV: one file a metric, "<output_path>/<job_name>/<metric>.csv" with lines "step,value". An empty output_path stands
/// for
/// "<run folder>/csv_monitor" and "<run folder>/tensorboard"; TRIREME_RUN_DIR, which `trireme train` sets, is the run
/// folder. A file that cannot be written is complained about once and ends no training.
class StepReport {
 public:
  explicit StepReport(const config::EngineConfig& config);

  /// Errors: InputError for a monitor without a folder: its output_path is empty and there is no run folder. The same
  /// on every rank.
  static void check(const config::EngineConfig& config);

  /// After every optimizer step.
  void step(const Engine& engine);

 private:
  void print(const Engine& engine) const;
  void write(const Engine& engine);

  std::optional<int64_t> every_;
  bool times_;
  bool memory_;
  std::optional<std::filesystem::path> csv_;
  std::unique_ptr<monitor::TensorBoardWriter> tensorboard_;
  bool complained_ = false;
};

} // namespace trireme::engine
