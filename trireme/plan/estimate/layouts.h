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

/// The flat buffer of a stage's trained parameters, as the engine makes it. Its tensors are the parameters in the order
/// of the layers, without names; a shared one occurs once.
bucket::FlatLayout layout_of(const Run& run, int64_t stage);

/// The part of it that every rank of the tensor axis has whole, or the part that is split; a tensor axis makes two flat
/// buffers.
bucket::FlatLayout layout_of(const Run& run, int64_t stage, bool whole);

/// The flat buffer of a stage's frozen parameters: those that ZeRO stage 3 shards. Empty if there are none.
bucket::FlatLayout frozen_layout_of(const Run& run, int64_t stage);

/// Elements of a stage's frozen parameters that are in no flat buffer: each rank has them as they were built.
int64_t frozen_whole(const Run& run, int64_t stage);

/// The buffers of the layers of a stage that are sharded when they are built (zero::EarlyShards), each with all
/// parameters of its layer, until these move into the flat buffer.
std::vector<bucket::FlatLayout> layouts_of_units(const Run& run, int64_t stage);

/// The unit of ZeRO stage 3 of every layer of a stage: that of the first layer of the stage that shares its parameters.
/// It is -1 for layers that are no units, whose parameters are all small enough to stay whole, or that are on another
/// stage. `layouts`: those of trained and frozen parameters.
std::vector<int64_t> units_of(const Run& run, int64_t stage, const std::vector<const bucket::FlatLayout*>& layouts);

/// The layers as input of a pipeline's partition.
std::vector<pipeline::LayerSize> sizes_of(const Model& model);

/// Elements of the buckets that belong to a unit, and of those that belong to none.
int64_t unit_elements(const bucket::FlatLayout& layout);
int64_t whole_elements(const bucket::FlatLayout& layout);

/// The sum of the `count` largest buckets.
int64_t largest_buckets(const bucket::FlatLayout& layout, int64_t count);
/// The sum of the `count` largest units, of which each layout may have a bucket.
int64_t largest_units(const std::vector<const bucket::FlatLayout*>& layouts, int64_t count);

/// Chunks in which the first rank's part of bucket `b` moves, in elements (bucket::StateStore::chunk_elements()); one
/// chunk if not `is_cut`.
std::vector<bucket::ChunkRun> chunks_of(const Run& run, const bucket::FlatLayout& layout, int64_t b, bool is_cut);

} // namespace trireme::estimate
