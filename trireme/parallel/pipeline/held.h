#pragma once

#include <trireme/parallel/pipeline/instruction.h>

#include <cstdint>

namespace trireme::pipeline {

/// Micro-batches that a stage keeps something of, and those of them of which only the gradients of weights are missing.
struct HeldMicroBatches {
  int64_t in_flight = 0;
  int64_t put_off = 0;

  bool operator==(const HeldMicroBatches&) const = default;
};

/// The moment of a zero-bubble program in which a stage needs most memory, whatever a micro-batch takes before and
/// after its backward_input: when most are put off, as many are in flight as ever.
HeldMicroBatches most_held(const Program& program);

} // namespace trireme::pipeline
