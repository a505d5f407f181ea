#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/flat_optimizer.h>

#include <memory>

namespace trireme::engine {

/// Whether each data rank has a part of the optimizer's states only (ZeRO); one whose parameters are elsewhere is one
/// of one.
bool shards_states(const Parts& parts, const config::EngineConfig& config);

/// Whether each data rank keeps its part of the gradients only (ZeRO 2 and 3), on a device also a single rank whose
/// gradients go to the host.
bool shards_gradients(const Parts& parts, const config::EngineConfig& config);

/// Connects a worker to its servers; parts.agreement.sync has its buffers and values. Errors: InputError, PeerError.
void join_servers(Parts& parts, const config::EngineConfig& config,
                  const optim::FlatOptimizer::OptionsOf& options_of_each);

/// Makes what the options ask for: plain data parallelism, ZeRO, hybrid sharding, averaging, compression, or the
/// client's own; opens the groups of a GPU. Collective. Errors: InputError.
void build_agreement(Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
