#pragma once

#include <trireme/bucket/flat_layout.h>
#include <trireme/checkpoint/checkpoint.h>

#include <string>

namespace trireme::checkpoint {

/// Elements [begin, begin + values.numel()) of what this rank holds of a parameter, or of a state that has its shape, at their place in
/// the whole tensor `name`.
TensorShard shard_of(const bucket::TensorInfo& tensor, const std::string& name, const std::string& kind, int64_t begin, const at::Tensor& values);
/// The same elements, to be read.
Region region_of(const bucket::TensorInfo& tensor, int64_t begin, int64_t numel);

} // namespace trireme::checkpoint
