#pragma once

#include <trireme/bucket/flatten.h>
#include <trireme/comm/group.h>
#include <trireme/parallel/data/options.h>

#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

using bucket::FlatBuffers;

/// The parameters that require a gradient, each once, under their first name
/// (a tied weight has two). Errors: InputError when there are none, unless `may_be_empty` (a pipeline stage).
bucket::NamedTensors trainable_parameters(const torch::nn::Module& model, bool may_be_empty = false);

/// One flat buffer for each dtype and device, in order of first appearance. `shards`
/// is the number of ranks that each bucket must divide among (1: it need not).
FlatBuffers flatten(const bucket::NamedTensors& parameters, const comm::Group& group, const DataParallelOptions& options, int64_t shards = 1,
                    const bucket::FlatOptions& flat_options = {});

/// Throws InputError on every rank when names, shapes or dtypes differ between ranks.
void check_same_model(const FlatBuffers& buffers, const comm::Group& group);

/// Makes every rank's parameters those of `root`; sharded ones are left alone.
void broadcast_parameters(const FlatBuffers& buffers, const comm::Group& group, int root = 0);
/// The same for what is not trained: frozen parameters and the module's buffers.
void broadcast_untrained(torch::nn::Module& model, const comm::Group& group, int root = 0);

} // namespace trireme::parallel
