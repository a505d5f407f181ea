#pragma once

#include <trireme/parallel/pipeline/schedule.h>

namespace trireme::pipeline {

/// Proves that the stages' programs fit each other; used for custom and built-in schedules.
///
///   - every micro-batch is computed once in every chunk: forward, then backward (or backward_input and
///     later backward_weight); with training = false only forward;
///   - every input of a computation was loaded or received before, and nothing else is loaded or received;
///   - every message has one sender and one receiver, and is sent and received in the order in which it is made;
///   - no buffer is used while another micro-batch is in it, from its first instruction to its last;
///   - a step of training ends with reduce_tied_grads, reduce_grads, optimizer_step, once each;
///   - no stage waits forever. Sends are assumed to happen where they are written (they may happen
///     earlier), and the first and the last of the three reductions to wait for all stages.
///
/// Time and memory: proportional to the number of instructions. Errors: InputError naming stage, instruction (counted
/// from 0), micro-batch, chunk and reason; for a deadlock, which stage waits for which.
void check_schedule(const std::vector<Program>& programs, const ScheduleShape& shape, bool training = true);

} // namespace trireme::pipeline
