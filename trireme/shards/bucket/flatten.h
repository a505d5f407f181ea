#pragma once

#include <trireme/shards/bucket/flat_parameters.h>

#include <memory>
#include <vector>

namespace trireme::bucket {

using FlatBuffers = std::vector<std::unique_ptr<FlatParameters>>;

/// Makes one flat buffer for each kind of parameter (dtype, device, trained or not), in order of first appearance.
/// `allocate` takes the number of elements, the type and the buffers' device (FlatOptions::device).
using AllocateOn = std::function<at::Tensor(int64_t, at::ScalarType, at::Device)>;
FlatBuffers flatten(const NamedTensors& parameters, const LayoutOptions& options, const AllocateOn& allocate,
                    const FlatOptions& flat_options = {});

} // namespace trireme::bucket
