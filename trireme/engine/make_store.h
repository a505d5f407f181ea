#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/shards/zero/sharding.h>

#include <memory>

namespace trireme::engine {

/// Returns what the data ranks shard (ZeRO). Parameters and gradients offloaded from a GPU are shards of one rank too.
zero::Sharding sharding_of(const config::EngineConfig& config, int data_ranks, at::Device device);

/// Logs where offload has no effect, and opens this rank's folders. Errors: InputError; also, perhaps on some ranks
/// only, for a folder that cannot be made or that another job uses.
void prepare_offload(Parts& parts, const InitializeOptions& options);

/// Make the stores of a rank's masters and optimizer states, of its parameter shards and of its gradient shards, by
/// `options.state_store` or config.offload. Null: the default, memory. On a GPU, the gradient store holds the gradients
/// that the host steps, in host memory or in files.
std::unique_ptr<bucket::StateStore> make_optimizer_store(const Parts& parts, const InitializeOptions& options);
std::shared_ptr<bucket::StateStore> make_parameter_store(const Parts& parts, const InitializeOptions& options);
std::shared_ptr<bucket::StateStore> make_gradient_store(const Parts& parts, const InitializeOptions& options);
/// Whether gradient shards are in files: if masters and parameters both are, and one copy of the model is sharded.
bool has_gradients_in_files(const Parts& parts, const InitializeOptions& options);
/// Makes a store for a layer that is sharded when it is built, before the others exist: in host memory for a GPU. Null:
/// memory.
std::unique_ptr<bucket::StateStore> make_early_store(const Parts& parts, const InitializeOptions& options);
/// Makes the store of shards of modules that are built one by one (zero::Init, layers of a list), until the parameter
/// store takes them over: in files if parameters will be, else null. Meanwhile parameters are on the disk twice. Errors
/// as prepare_offload().
std::shared_ptr<bucket::StateStore> make_building_store(const config::EngineConfig& config, int rank);

/// How the optimizer steps the parts whose states are on the host of a GPU.
optim::HostStepOptions host_steps(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
