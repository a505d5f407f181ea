#include <trireme/plan/conflict.h>

#include <trireme/config/engine_config.h>
#include <trireme/plan/estimate/moves.h>

namespace trireme::plan {

std::optional<config::Conflict> find_conflict(const Job& job, const Layout& layout, bool on_gpu) {
  config::EngineConfig engine;
  const estimate::Run& base = job.base;
  engine.zero = base.zero;
  engine.zero.stage = layout.zero_stage;
  engine.precision = base.precision;
  engine.optimizer = base.optimizer;
  engine.data_parallel = base.data_parallel;
  engine.averaging = base.averaging;
  engine.compression = base.compression;
  engine.gradient_clipping = base.clips ? 1 : 0;
  engine.step_in_backward = base.steps_in_backward;
  engine.offload = base.offload;
  engine.offload.optimizer.place = layout.states;
  engine.offload.parameters.place = layout.parameters;
  config::Setting setting{.engine = engine};
  setting.device = on_gpu ? estimate::kDevice : "";
  setting.pipe = layout.pipe;
  setting.context = layout.context;
  setting.tensor = layout.tensor;
  setting.sequence_parallel = layout.sequence_parallel;
  setting.replica_ranks = layout.pipe * layout.context * layout.tensor;
  return config::find_conflict(setting);
}

} // namespace trireme::plan
