#pragma once

#include <trireme/engine/engine.h>
#include <trireme/monitor/metrics.h>

#include <cstdint>
#include <map>
#include <string>

namespace trireme::train {

/// Bytes that rank 0 has sent, and moved from and to files, since the last call.
class TrafficMeter {
 public:
  /// Skips traffic between steps: of an evaluation.
  void skip(const engine::Engine& engine) {
    sent_ = engine.bytes_sent_by_axes();
    skip_files(engine);
  }
  /// The same for files only: a checkpoint reads all states.
  void skip_files(const engine::Engine& engine) { files_ = engine.offload_traffic().value_or(offload::Traffic()); }
  /// Adds a step's traffic to its metrics.
  void measure(const engine::Engine& engine, monitor::StepMetrics& step) {
    step.comm_bytes = 0;
    for (const auto& [axes, sent] : engine.bytes_sent_by_axes()) {
      *step.comm_bytes += step.comm_bytes_by[axes] = sent - sent_[axes];
    }
    if (step.comm_bytes_by.size() == 1) {
      step.comm_bytes_by.clear();
    }
    if (const auto files = engine.offload_traffic()) {
      step.offload_read_bytes = files->read - files_.read;
      step.offload_write_bytes = files->written - files_.written;
    }
    skip(engine);
  }

 private:
  std::map<std::string, int64_t> sent_; // by axes
  offload::Traffic files_;
};

} // namespace trireme::train
