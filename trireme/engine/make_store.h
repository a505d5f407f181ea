#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/flat_optimizer.h>

#include <memory>

namespace trireme::engine {

/// Refuses what does not go with EngineConfig::offload. Errors: InputError.
void check_offload(const Parts& parts, const InitializeOptions& options);

/// Makes what holds masters and optimizer states between steps, as EngineConfig::offload says, or the client's own; null: the memory of their device.
std::unique_ptr<bucket::StateStore> make_optimizer_store(const Parts& parts, const InitializeOptions& options);
/// The same for shards of parameters at ZeRO stage 3.
std::shared_ptr<bucket::StateStore> make_parameter_store(const Parts& parts, const InitializeOptions& options);
/// The same for a layer that is sharded as soon as it is built, before all of them are there: a store for each. Of the host of a device; null: memory.
std::unique_ptr<bucket::StateStore> make_early_store(const Parts& parts, const InitializeOptions& options);

/// How the optimizer steps what is on the host of a device.
optim::HostStepOptions host_steps(const Parts& parts, const config::EngineConfig& config);

} // namespace trireme::engine
