#pragma once

#include <trireme/optim/optimizer.h>

#include <string>

namespace trireme::optim {

/// Throws Error naming what is wrong unless `shard` holds contiguous fp32 host arrays of one length,
/// one state for each of `state_names`, and a step of at least 1.
void check_shard(const ShardStep& shard, const char* optimizer, const std::vector<std::string>& state_names);

/// Throws Error unless `tensor` is [n], contiguous, fp32 and on the host.
void check_flat(const at::Tensor& tensor, const std::string& what);

/// Throws InputError("optim", "<optimizer>: <option> must be <range>, got <value>") unless `holds`.
void check_option(bool holds, const char* optimizer, const char* option, const char* range, double value);

} // namespace trireme::optim
