#pragma once

#include <trireme/engine/engine_impl.h>
#include <trireme/engine/initialize.h>
#include <trireme/zero/model_units.h>

#include <vector>

namespace trireme::engine {

/// Builds what of the model is this rank's, in the type that is computed in, and says what its units are. A list of layers at ZeRO
/// stage 3 is sharded layer by layer. Errors: InputError for stage 3 in a pipeline of several stages.
zero::ModelUnits build_model(Engine::Impl& impl, comm::World& world, const InitializeOptions& options);

/// Moves the parameters into flat buffers, which the engine then has, and makes those of all replicas equal. Collective.
/// Returns the buffers that are trained.
std::vector<bucket::FlatParameters*> flatten(Engine::Impl& impl, const config::EngineConfig& config, zero::ModelUnits& units);

/// How buckets of gradients are reduced: scattered or not, and in which type they travel.
parallel::Reducer::Reduce reduce_function(const Engine::Impl& impl, bool sharded);

} // namespace trireme::engine
