#pragma once

#include <trireme/bucket/flat_parameters.h>

#include <memory>
#include <vector>

namespace trireme::bucket {

using FlatBuffers = std::vector<std::unique_ptr<FlatParameters>>;

/// One flat buffer for each kind of parameter (dtype, device, trained or not), in order of first appearance.
/// `allocate_host` gives the memory of those on the CPU.
FlatBuffers flatten(const NamedTensors& parameters, const LayoutOptions& options, const Allocate& allocate_host, const FlatOptions& flat_options = {});

} // namespace trireme::bucket
