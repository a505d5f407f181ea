#pragma once

#include <trireme/parallel/pipeline/layer_costs.h>
#include <trireme/plan/estimate/run.h>
#include <trireme/shards/bucket/chunks.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::estimate {

/// Indices of the layers on a stage, by chunk.
std::vector<std::vector<int64_t>> layers_of(const Run& run, int64_t stage);

/// The flat buffer that the parameters of a stage lie in, as the engine makes it. Its tensors are the stage's
/// parameters in the order of the layers, without names; a shared one comes once.
bucket::FlatLayout layout_of(const Run& run, int64_t stage);

/// The part of it that is whole on every rank of the tensor axis, or the part that is divided: with a tensor axis these
/// are two flat buffers.
bucket::FlatLayout layout_of(const Run& run, int64_t stage, bool whole);

/// The buffer of each layer of a stage that is sharded as soon as it is built (zero::EarlyShards), with all its
/// parameters, until they move into the flat buffer.
std::vector<bucket::FlatLayout> layouts_of_units(const Run& run, int64_t stage);

/// The unit of ZeRO stage 3 that every layer of a stage uses: that of the stage's first layer that shares its
/// parameters; -1 where there is none, because the layer is not a unit or all its parameters are small enough to stay
/// whole, and for layers of other stages.
std::vector<int64_t> units_of(const Run& run, int64_t stage, const bucket::FlatLayout& layout);

/// The layers, as a pipeline's partition sees them.
std::vector<pipeline::LayerSize> sizes_of(const Model& model);

/// Elements of the buckets that belong to a unit, and of those that belong to none.
int64_t unit_elements(const bucket::FlatLayout& layout);
int64_t whole_elements(const bucket::FlatLayout& layout);

/// The sum of the `count` largest buckets; with `units`, only buckets of units count.
int64_t largest_buckets(const bucket::FlatLayout& layout, int64_t count, bool units = false);

/// Elements of what moves at a time of the first rank's part of bucket `b` (bucket::StateStore::chunk_elements()); not
/// `is_cut`: all of it.
std::vector<bucket::ChunkRun> chunks_of(const Run& run, const bucket::FlatLayout& layout, int64_t b, bool is_cut);

} // namespace trireme::estimate
