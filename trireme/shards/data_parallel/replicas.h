#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flatten.h>
#include <trireme/shards/data_parallel/options.h>
#include <trireme/shards/data_parallel/reduce_groups.h>

#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

using bucket::FlatBuffers;

/// Returns pointers to the buffers, which `buffers` owns.
std::vector<bucket::FlatParameters*> pointers_to(const FlatBuffers& buffers);

/// Returns the parameters that require a gradient, each once, under their first name (a tied weight has two). Errors:
/// InputError if there are none, unless `may_be_empty` (a pipeline stage).
bucket::NamedTensors trainable_parameters(const torch::nn::Module& model, bool may_be_empty = false);
bucket::NamedTensors trainable_parameters(const bucket::NamedTensors& parameters, bool may_be_empty = false);

/// Makes one flat buffer per reduce group, dtype and device, in order of first appearance within a group. `divisible`:
/// each bucket divides by the number of ranks that hold one copy (ReduceGroups::shards). If flat_options.size is not 1,
/// a buffer's plan() is for those ranks.
FlatBuffers flatten(const bucket::NamedTensors& parameters, const ReduceGroups& groups,
                    const DataParallelOptions& options, bool divisible = false,
                    const bucket::FlatOptions& flat_options = {});

/// Throws InputError on every rank if names, shapes or dtypes differ between the ranks of a group.
void check_same_model(const FlatBuffers& buffers, const ReduceGroups& groups);

/// Throws InputError on every rank if values differ between the ranks; it names the first such parameter. Collective.
/// Cost: reads all parameters once.
void check_same_values(const FlatBuffers& buffers, const comm::Group& group);

/// Broadcasts the parameters of `root` in each group, except sharded ones.
void broadcast_parameters(const FlatBuffers& buffers, const ReduceGroups& groups, int root = 0);
/// Broadcasts what is not trained: frozen parameters and the module's buffers.
void broadcast_untrained(torch::nn::Module& model, const comm::Group& group, int root = 0);
/// Broadcasts any tensors that have memory.
void broadcast_tensors(const bucket::NamedTensors& tensors, const comm::Group& group, int root = 0);

} // namespace trireme::parallel
