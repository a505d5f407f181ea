#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/manifest.h>

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>

namespace trireme::checkpoint {

using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

/// Refuses a shard without a name or values, or outside of its tensor. Errors: InputError naming the tensor.
void check_shard(const TensorShard& shard);

/// A rank's report of a shard to rank 0: everything but the values. `key`: its name in the file.
nlohmann::json report_of(const TensorShard& shard, const std::string& key);

/// Adds the report of `rank` to the tensors of all ranks. `file`: the index of its file. Errors: InputError when ranks
/// differ in a tensor's type or shape.
void add_shard(TensorEntries& tensors, const nlohmann::json& report, size_t file, size_t rank);

} // namespace trireme::checkpoint
