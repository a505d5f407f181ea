#pragma once

#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// The order of tensors in a flat buffer, for FlatLayout: about the order in which gradients arrive, the reverse of
/// registration. Units come first: parameters outside units are spread over the model, so their last gradient is late.
std::vector<int64_t> buffer_order(const std::vector<TensorInfo>& tensors);

} // namespace trireme::bucket
