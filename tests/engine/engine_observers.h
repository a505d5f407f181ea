#pragma once

#include "small_run.h"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace trireme::engine {

/// What an engine does and holds, as far as each of these looks; `run` is a run file of which only "engine" counts.
/// The random state begins anew in each.
namespace observe {

using nlohmann::json;

/// Four steps of a small GPT: losses, rates, norms, scales; then weights and optimizer states, as types and hashes.
json training(comm::World& world, const json& run);
/// The batches of three steps, as the loss function gets them.
json batches(comm::World& world, const json& run);
/// Bytes of optimizer states on this rank after a step.
json state_bytes(comm::World& world, const json& run);
/// The operations of one step, in order.
json operations(comm::World& world, const json& run);
/// The lines that are logged, without their numbers, and the level of the log.
json log_lines(comm::World& world, const json& run);
/// Rates and betas of many steps.
json schedule(comm::World& world, const json& run);
/// Loss scales where the first, third, fifth and sixth step of eight overflow.
json loss_scales(comm::World& world, const json& run);
/// Whether steps with a gradient of NaN under a finite loss are skipped.
json skips_nan_gradients(comm::World& world, const json& run);
/// The type in which floating-point inputs arrive at the model.
json input_type(comm::World& world, const json& run);
/// Whether all ranks evaluate with the same running mean, after training on data of their own.
json equal_module_buffers(comm::World& world, const json& run);
/// The first step's loss of a model with BatchNorm, of which each rank has other samples.
json loss_with_norm(comm::World& world, const json& run);
/// Whether backward() changes weights.
json steps_in_backward(comm::World& world, const json& run);
/// What becomes of a checkpoint to which the ranks give different tags.
json differing_tags(comm::World& world, const json& run);
/// After three steps of a GPT in one piece: what becomes of each part's activations (of parts that "auto" chooses for,
/// whether all are kept), and which of the folders "one" and "other" there are files of activations in.
json activations(comm::World& world, const json& run);
/// A list of layers: stages, bounds, first weights, and how often a layer's forward runs in a step.
json layers(comm::World& world, const json& run);

} // namespace observe
} // namespace trireme::engine
