#pragma once

#include <trireme/base/error.h>
#include <trireme/device/phase_timer.h>
#include <trireme/monitor/chrome_trace.h>
#include <trireme/parallel/pipeline/instruction.h>

#include <cstdint>

namespace trireme::pipeline {

/// Adds up host time, or marks a stretch of GPU time; and is a span of the trace named after micro-batch and chunk: "F
/// 3 0".
class ComputeSpan {
 public:
  ComputeSpan(char kind, const Instruction& instruction, double& seconds, device::PhaseTimer* on_device)
      : kind_(kind),
        instruction_(instruction),
        seconds_(seconds),
        on_device_(on_device),
        begin_(monitor::Tracer::now_ns()) {
    if (on_device_ != nullptr) {
      on_device_->begin();
    }
  }
  ~ComputeSpan() {
    if (on_device_ != nullptr) {
      on_device_->end();
    }
    const int64_t end = monitor::Tracer::now_ns();
    seconds_ += static_cast<double>(end - begin_) * 1e-9;
    if (monitor::tracer().on()) {
      monitor::tracer().add(monitor::Lane::compute,
                            concat(kind_, ' ', instruction_.micro_batch, ' ', instruction_.chunk), begin_, end);
    }
  }
  ComputeSpan(const ComputeSpan&) = delete;
  ComputeSpan& operator=(const ComputeSpan&) = delete;

 private:
  char kind_;
  const Instruction& instruction_;
  double& seconds_;
  device::PhaseTimer* on_device_;
  int64_t begin_;
};

} // namespace trireme::pipeline
