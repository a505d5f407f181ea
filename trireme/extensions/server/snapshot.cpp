#include <trireme/extensions/server/snapshot.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/extensions/server/shard.h>

namespace trireme::parallel::server {

std::filesystem::path snapshot_file(const std::filesystem::path& folder, int place) {
  return folder / concat("server-", place, ".safetensors");
}

void save_snapshot(const std::filesystem::path& file, const Snapshot& snapshot, Shard& shard) {
  std::filesystem::create_directories(file.parent_path());
  shard.save(file, {{"clock", std::to_string(snapshot.clock)},
                    {"steps", std::to_string(snapshot.steps)},
                    {"servers", std::to_string(snapshot.servers)},
                    {"place", std::to_string(snapshot.place)},
                    {"parameters", describe(snapshot.parameters).dump()},
                    {"optimizer", snapshot.optimizer},
                    {"last", snapshot.last.dump()},
                    {"load", as_json(snapshot.load).dump()},
                    {"first_clock", snapshot.first_clock ? std::to_string(*snapshot.first_clock) : "null"},
                    {"made", nlohmann::json(snapshot.made).dump()}});
}

Snapshot read_snapshot(const std::filesystem::path& file, int place, int64_t servers) {
  const auto saved = checkpoint::Safetensors::open(file);
  const auto word = [&](const char* key) {
    const auto found = saved.metadata().find(key);
    if (found == saved.metadata().end()) {
      throw InputError("server", concat(file.string(), " is not a server's snapshot: it has no \"", key, '"'),
                       "Use another folder.");
    }
    return found->second;
  };
  Snapshot snapshot;
  try {
    const auto json = [&](const char* key) { return nlohmann::json::parse(word(key)); };
    const auto first_clock = json("first_clock");
    snapshot = {.place = std::stoi(word("place")),
                .servers = std::stoll(word("servers")),
                .clock = std::stoll(word("clock")),
                .steps = std::stoll(word("steps")),
                .parameters = read_parameters(json("parameters")),
                .optimizer = word("optimizer"),
                .last = json("last"),
                .load = read_load(json("load")),
                .first_clock = first_clock.is_null() ? std::nullopt : std::optional(first_clock.get<int64_t>()),
                .made = json("made").get<std::map<int, int64_t>>()};
  } catch (const std::logic_error&) { // thrown by stoi
    throw InputError("server", concat(file.string(), " is not a server's snapshot: one of its numbers is invalid"),
                     "Use another folder.");
  } catch (const nlohmann::json::exception&) {
    throw InputError("server", concat(file.string(), " is not a server's snapshot: its parameters are not JSON"),
                     "Use another folder.");
  }
  if (snapshot.servers != servers || snapshot.place != place) {
    throw InputError("server",
                     concat(file.string(), " belongs to server ", snapshot.place, " of ", snapshot.servers,
                            ", this is server ", place, " of ", servers),
                     "Start as many servers as before, or begin from a checkpoint in another folder.");
  }
  return snapshot;
}

} // namespace trireme::parallel::server
