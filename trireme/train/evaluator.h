#pragma once

#include <trireme/train/commands.h>
#include <trireme/train/registry.h>

namespace trireme::train {

/// True if this process evaluates the checkpoints of a run that other processes train (TRIREME_EVALUATOR: the number of
/// data ranks, or of workers).
bool is_evaluator();

/// Waits for checkpoints in the run folder and evaluates each newest one once, like the run itself. Uses the same
/// validation data, and as many micro-batches as all its data ranks, or as its first worker alone. Each adds a line
/// with step, val_loss and val_accuracy to metrics.evaluator.jsonl in the run folder; a restarted process continues it.
/// Ends after the checkpoint of the run's last step; if the run never reaches it, waits until this process is ended.
/// Alone on its device. Returns the exit status. Memory: parameters and gradients. Errors: InputError without
/// validation data, or for a checkpoint of another model.
int evaluate_checkpoints(const TrainCommand& command, const Registry& registry);

} // namespace trireme::train
