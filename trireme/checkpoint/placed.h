#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Describes a range of this rank's part of a parameter, or of a state of the same shape, as shards of the tensor
/// `name`: one shard, or one per overlapping entry of Placement::parts. The range is [begin, begin + values.numel()).
std::vector<TensorShard> shards_of(const bucket::TensorInfo& tensor, const std::string& name, const std::string& kind,
                                   int64_t begin, const at::Tensor& values);
/// The same for `numel` values of this type of tensor `i` of a lender.
std::vector<TensorShard> lent_shards_of(const bucket::TensorInfo& tensor, const std::string& name,
                                        const std::string& kind, int64_t begin, int64_t numel, at::ScalarType type,
                                        const std::shared_ptr<Lender>& by, int64_t i);
/// Reads the same elements into `values`, which is contiguous.
void read_placed(const Checkpoint& saved, const std::string& name, const bucket::TensorInfo& tensor, int64_t begin,
                 const at::Tensor& values);

} // namespace trireme::checkpoint
