#pragma once

#include <trireme/parallel/pipeline/schedule.h>

namespace trireme::pipeline {

/// Proves that the stages' programs fit each other; used for custom and built-in schedules. It checks:
///
///   (1) Every micro-batch is computed once in every chunk: forward, then backward (or backward_input and later
///       backward_weight). With training = false there is only forward.
///   (2) Every input of a computation was loaded or received before. Nothing else is loaded or received.
///   (3) Every message has one sender and one receiver. Messages are sent and received in the order in which they are
///       made.
///   (4) A buffer holds one micro-batch from its first instruction to its last.
///   (5) A training step ends with reduce_tied_grads, reduce_grads and optimizer_step, once each.
///   (6) No stage waits forever. Sends are assumed to happen where they are written (they may happen earlier). The
///       first and the last of the three instructions of (5) are assumed to wait for all stages.
///
/// Time and memory: proportional to the number of instructions. Errors: InputError naming stage, instruction (counted
/// from 0), micro-batch, chunk and reason; for a deadlock, which stage waits for which.
void check_schedule(const std::vector<Program>& programs, const ScheduleShape& shape, bool training = true);

} // namespace trireme::pipeline
