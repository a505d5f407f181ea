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

/// What a rank tells rank 0 of a shard: everything but its values. `key`: its name where it is stored.
nlohmann::json report_of(const TensorShard& shard, const std::string& key);

/// Adds what `rank` reported to the tensors of all ranks. `file`: the number of its file. Errors: InputError where
/// ranks differ in a tensor's type or shape.
void add_shard(TensorEntries& tensors, const nlohmann::json& report, size_t file, size_t rank);

} // namespace trireme::checkpoint
