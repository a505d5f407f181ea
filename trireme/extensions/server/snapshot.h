#pragma once

#include <trireme/extensions/server/load.h>
#include <trireme/extensions/server/pieces.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel::server {

class Shard;

/// Metadata of a server's snapshot.
struct Snapshot {
  int place = 0;
  int64_t servers = 1;
  int64_t clock = 0;
  int64_t steps = 0;
  std::vector<ParameterInfo> parameters;
  std::string optimizer; ///< JSON
  nlohmann::json last;   ///< decision of the last round
  Load load;
  std::optional<int64_t> first_clock; ///< server 0's clock for these values; absent if workers step separately
  std::map<int, int64_t> made;        ///< Workers::made()
};

std::filesystem::path snapshot_file(const std::filesystem::path& folder, int place);
/// Writes the shard and `snapshot` atomically. Errors: Error.
void save_snapshot(const std::filesystem::path& file, const Snapshot& snapshot, Shard& shard);
/// Reads all but the tensors, which Shard::load() reads. Errors: InputError for a file that is not a snapshot or
/// belongs to another server.
Snapshot read_snapshot(const std::filesystem::path& file, int place, int64_t servers);

} // namespace trireme::parallel::server
