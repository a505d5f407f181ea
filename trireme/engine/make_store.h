#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/shards/zero/sharding.h>

#include <memory>

namespace trireme::engine {

/// What the data ranks shard (ZeRO); parameters and gradients that leave the device are shards of one rank too.
zero::Sharding sharding_of(const config::EngineConfig& config, int data_ranks, at::Device device);

/// Says where offload has no effect, and opens this rank's folders. Errors: InputError; also for a folder
/// that cannot be made or that another job uses, which may happen on some ranks only.
void prepare_offload(Parts& parts, const InitializeOptions& options);

/// Make what holds a rank's masters and optimizer states, its shards of parameters and its shards of gradients, as
/// `options.state_store` or config.offload say; null: their default, in memory. Of a device these gradients are those
/// that its host steps: they lie there, or in files.
std::unique_ptr<bucket::StateStore> make_optimizer_store(const Parts& parts, const InitializeOptions& options);
std::shared_ptr<bucket::StateStore> make_parameter_store(const Parts& parts, const InitializeOptions& options);
std::shared_ptr<bucket::StateStore> make_gradient_store(const Parts& parts, const InitializeOptions& options);
/// Whether shards of gradients are in files: where masters and parameters both are, and one copy of the model is
/// sharded.
bool has_gradients_in_files(const Parts& parts, const InitializeOptions& options);
/// For a layer that is sharded as soon as it is built, before all of them are there: a store for each, on the host of a
/// device; null: memory.
std::unique_ptr<bucket::StateStore> make_early_store(const Parts& parts, const InitializeOptions& options);
/// For the shards of modules that are built one by one (zero::Init, layers of a list), until the parameter store has
/// them: in files where parameters will be, else null. For that time parameters are on the disk twice. Errors as
/// prepare_offload().
std::shared_ptr<bucket::StateStore> make_building_store(const config::EngineConfig& config, int rank);

/// How the optimizer steps what is on the host of a device.
optim::HostStepOptions host_steps(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
