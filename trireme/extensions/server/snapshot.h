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

/// What a server's snapshot says beside its tensors.
struct Snapshot {
  int place = 0;
  int64_t servers = 1;
  int64_t clock = 0;
  int64_t steps = 0;
  std::vector<ParameterInfo> parameters;
  std::string optimizer; ///< JSON
  nlohmann::json last;   ///< what was decided in the last round
  Load load;
  std::optional<int64_t>
      first_clock;             ///< the first server's clock that the values belong to; none where workers step alone
  std::map<int, int64_t> made; ///< Workers::made()
};

std::filesystem::path snapshot_file(const std::filesystem::path& folder, int place);
/// Writes the shard and `snapshot`, whole or not at all. Errors: Error.
void save_snapshot(const std::filesystem::path& file, const Snapshot& snapshot, Shard& shard);
/// Reads all but the tensors, which are Shard::load()'s. Errors: InputError for a file that is no snapshot, or that of
/// another server.
Snapshot read_snapshot(const std::filesystem::path& file, int place, int64_t servers);

} // namespace trireme::parallel::server
