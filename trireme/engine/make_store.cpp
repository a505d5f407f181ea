#include <trireme/engine/make_store.h>

#include <trireme/base/error.h>
#include <trireme/engine/make_sync.h>
#include <trireme/offload/host_store.h>

#include <string>
#include <utility>

namespace trireme::engine {
namespace {

using offload::Place;

// What exchanges something else than gradients reads and writes masters and states where the device is.
const char* exchanges_values(const InitializeOptions& options) {
  return options.config.averaging.on()     ? "parameter_averaging"
         : options.config.server.on()      ? "parameter servers"
         : compresses(options.config) != nullptr ? compresses(options.config)
         : options.gradient_sync           ? "a gradient_sync of its own"
                                           : nullptr;
}

} // namespace

void check_offload(const Parts& parts, const InitializeOptions& options) {
  const offload::OptimizerOptions& optimizer = options.config.offload.optimizer;
  const offload::ParameterOptions& parameters = options.config.offload.parameters;
  const bool on_cpu = parts.device().is_cpu();
  if (optimizer.place != Place::device && !on_cpu && exchanges_values(options) != nullptr) {
    throw InputError("engine", concat("offload_optimizer on ", parts.device().str(), " with ", exchanges_values(options), ", which works on masters and states where the gradients are"),
                     "Leave one of them out.");
  }
  if (optimizer.delayed_update && !on_cpu) { // on the CPU it changes nothing
    const char* const refused = optimizer.place == Place::device ? "optimizer states on the device, which steps them in no time of the host"
                                : optimizer.ratio < 1            ? "a ratio below 1: one part would be a step ahead of the other"
                                : options.config.step_in_backward ? "step_in_backward, which steps at once"
                                : parameters.place != Place::device ? "offload_param: shards would change while they are gathered"
                                                                  : nullptr;
    if (refused != nullptr) {
      throw InputError("engine", concat("delayed_update with ", refused), "Leave one of them out.");
    }
  }
  if (parameters.place == Place::device) {
    return;
  }
  if (options.config.zero.stage < 3) {
    throw InputError("engine", concat("offload_param with ZeRO stage ", options.config.zero.stage, ", where every rank has all parameters at all times"), "Say \"stage\": 3.");
  }
  if (!on_cpu && optimizer.place == Place::device) {
    throw InputError("engine", "offload_param without offload_optimizer: parameters on the host would be stepped on the device", "Say \"offload_optimizer\": {\"device\": \"cpu\"} too.");
  }
  if (!on_cpu && optimizer.ratio < 1) {
    throw InputError("engine", concat("offload_param with offload_optimizer's ratio ", optimizer.ratio, ": parameters on the host would be stepped on the device"), "Say \"ratio\": 1.");
  }
}

std::unique_ptr<bucket::StateStore> make_optimizer_store(const Parts& parts, const InitializeOptions& options) {
  if (options.state_store) {
    return options.state_store();
  }
  const offload::OptimizerOptions& optimizer = options.config.offload.optimizer;
  if (optimizer.place != Place::host || parts.device().is_cpu()) {
    return nullptr;
  }
  std::unique_ptr<bucket::StateStore> store = offload::make_host_store(optimizer.pin_memory);
  return optimizer.ratio < 1 ? offload::make_partial_store(std::move(store), optimizer.ratio) : std::move(store);
}

std::shared_ptr<bucket::StateStore> make_parameter_store(const Parts& parts, const InitializeOptions& options) {
  if (options.state_store) {
    return options.state_store();
  }
  return make_early_store(parts, options);
}

std::unique_ptr<bucket::StateStore> make_early_store(const Parts& parts, const InitializeOptions& options) {
  const offload::ParameterOptions& parameters = options.config.offload.parameters;
  return parameters.place == Place::host && !parts.device().is_cpu() ? offload::make_host_store(parameters.pin_memory) : nullptr;
}

optim::HostStepOptions host_steps(const Parts& parts, const config::EngineConfig& config) {
  optim::HostStepOptions host;
  host.pinned = config.offload.optimizer.pin_memory;
  for (int group = 0; group < static_cast<int>(parts.sync->groups().all().size()); ++group) {
    host.add_up_there = host.add_up_there && parts.sync->groups().replicas(group).size() == 1;
  }
  host.delayed = config.offload.optimizer.delayed_update;
  return host;
}

} // namespace trireme::engine
