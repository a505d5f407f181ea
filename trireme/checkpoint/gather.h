#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Unsharded tensors by name.
using WholeTensors = std::map<std::string, at::Tensor>;

/// Assembles the shards `mine` of all ranks on rank 0, in new CPU memory; other ranks get nothing. Equals save() and
/// Checkpoint::read() without files. Collective over `group`. Cost: rank 0 holds all unsharded tensors and receives the
/// shards of others one by one. Errors: those of save(), the same on every rank.
WholeTensors gather(const comm::Group& group, const std::vector<TensorShard>& mine);

} // namespace trireme::checkpoint
