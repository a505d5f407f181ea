#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Whole tensors by name.
using WholeTensors = std::map<std::string, at::Tensor>;

/// Puts `mine` of every rank together on rank 0, in new memory on the CPU; the others get nothing. What save() and
/// Checkpoint::read() would give, without files. Collective over `group`. Cost: rank 0 holds all whole tensors and
/// receives what it does not have, a shard at a time. Errors: as of save(), the same on every rank.
WholeTensors gather(const comm::Group& group, const std::vector<TensorShard>& mine);

} // namespace trireme::checkpoint
