#pragma once

#include "commands.h"

namespace trireme::tools {

/// Whether this process evaluates the checkpoints of a run that others train (TRIREME_EVALUATOR: the number of data
/// ranks, or of workers).
bool is_evaluator();

/// Waits for checkpoints in the run folder and evaluates each time the newest, once, as the run itself does: the same
/// validation data, and as many micro-batches as its data ranks take together, or its first worker alone. Each adds a
/// line with step, val_loss and val_accuracy to metrics.evaluator.jsonl in the run folder; a process that is started
/// again goes on there. Ends when it has evaluated a checkpoint of the run's last step; a run that never comes so far
/// is waited for until somebody ends this process. Alone on its device. Returns the exit status. Memory: parameters and
/// gradients. Errors: InputError without validation data, or for a checkpoint of another model.
int evaluate_checkpoints(const TrainCommand& command);

} // namespace trireme::tools
