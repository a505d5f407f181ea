#pragma once

#include <trireme/bucket/flat_layout.h>
#include <trireme/checkpoint/checkpoint.h>

#include <string>

namespace trireme::checkpoint {

/// Describes elements [begin, begin + values.numel()) of this rank's part of a parameter, or of a state of the same shape, as a shard of
/// the whole tensor `name`.
TensorShard shard_of(const bucket::TensorInfo& tensor, const std::string& name, const std::string& kind, int64_t begin, const at::Tensor& values);
/// The region of the same elements, for reading.
Region region_of(const bucket::TensorInfo& tensor, int64_t begin, int64_t numel);

} // namespace trireme::checkpoint
