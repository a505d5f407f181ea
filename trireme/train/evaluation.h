#pragma once

#include <trireme/train/task.h>

#include <trireme/comm/group.h>
#include <trireme/data/loader.h>
#include <trireme/engine/engine.h>

#include <optional>

namespace trireme::train {

struct Evaluated {
  double loss = 0;                ///< divided by Task::loss_divisor
  std::optional<double> accuracy; ///< 0..1, of classifiers
};

/// Evaluates the engine's model, which is the task's, on at most `batches` micro-batches per rank (0: all of the
/// loader). Collective over `everyone`.
Evaluated evaluate(engine::Engine& engine, const Task& task, data::DataLoader& loader, int64_t batches,
                   const comm::Group& everyone);

} // namespace trireme::train
