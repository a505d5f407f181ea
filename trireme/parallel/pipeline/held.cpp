#include <trireme/parallel/pipeline/held.h>

#include <tuple>

namespace trireme::pipeline {

HeldMicroBatches most_held(const Program& program) {
  HeldMicroBatches now;
  HeldMicroBatches most;
  for (const Instruction& instruction : program) {
    now.in_flight += instruction.op == Op::forward                                             ? 1
                     : instruction.op == Op::backward || instruction.op == Op::backward_weight ? -1
                                                                                               : 0;
    now.put_off += instruction.op == Op::backward_input ? 1 : instruction.op == Op::backward_weight ? -1 : 0;
    if (std::tie(now.put_off, now.in_flight) > std::tie(most.put_off, most.in_flight)) {
      most = now;
    }
  }
  return most;
}

} // namespace trireme::pipeline
