// What a process of a job is: a server, the evaluator, or a rank.
#include <trireme/train/train_run.h>

#include <trireme/engine/preemption.h>
#include <trireme/train/evaluator.h>
#include <trireme/train/server_roles.h>

namespace trireme::train {

int train(const TrainCommand& command, const Registry& registry) {
  if (is_server()) {
    return serve_parameters(command, registry.types());
  }
  if (is_evaluator()) {
    return evaluate_checkpoints(command, registry);
  }
  const engine::Preemption preemption; // early: a signal while ranks connect is handled after the first step
  comm::World world = comm::World::connect();
  return train(command, registry, world);
}

} // namespace trireme::train
