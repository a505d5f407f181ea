#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {
class JsonNode;
}

namespace trireme::config {

struct EngineConfig;
struct RunConfig;

/// What of InitializeOptions decides whether a program's options go together.
struct ProgramOptions {
  bool pipeline = false; // a PipelineModule; else a model in one piece
  bool optimizer = false;
  bool parameter_groups = false;
  bool lr = false;
  bool own_sync = false;      // `sync` is the program's own,
  bool server_worker = false; // a worker_sync(),
  bool replica = false;       // or a replica_sync()
  bool placement = false;     // or reduce_groups
  bool state_store = false;
};

/// The settings of a run that the table checks. Without `run` and `program`: an engine section alone.
/// References must outlive it.
struct Setting {
  const EngineConfig& engine;
  /// The run file, or null for a program.
  const RunConfig* run = nullptr;
  /// Absent for a run file.
  std::optional<ProgramOptions> program = std::nullopt;
  /// Device of the ranks, such as "cuda:0"; empty: the CPU, or not known before ranks start.
  std::string device = {};
  int64_t pipe = 1;
  int64_t context = 1;
  int64_t tensor = 1;
  bool sequence_parallel = false;
  /// Ranks that train one replica of the model; of a program, all of its world.
  int64_t replica_ranks = 1;
};

/// The setting of a run file, which must outlive it.
Setting setting_of(const RunConfig& run);

/// One feature that a run can use.
struct Feature {
  /// Its name on the page.
  std::string_view name;
  /// Its keys in a run file, of which the first that exists is named: "parallel.sync engine.parameter_averaging".
  /// Empty: only programs do.
  std::string_view keys;
  bool (*is_on)(const Setting&);
  /// Its name in errors, such as "ZeRO stage 2". Null: its name on the page.
  std::string (*said)(const Setting&) = nullptr;

  std::string text(const Setting& setting) const;
};

/// None of `these` can be combined with any of `those`.
struct Incompatible {
  std::vector<Feature> these;
  std::vector<Feature> those;
  std::string_view why;
  /// What to do instead.
  std::string_view instead;
};

/// The table. Run files, initialize(), estimates and plans check it; docs/compatibility.md is printed from it.
const std::vector<Incompatible>& incompatible_features();

/// Two features of a setting that conflict.
struct Conflict {
  Feature feature;
  Feature with;
  /// "FEATURE with OTHER: why".
  std::string what;
  std::string next;
};

/// The first row of the table that the setting breaks.
std::optional<Conflict> find_conflict(const Setting& setting);

/// The same for a run file, or for its engine section alone (`root` is then that too). Errors: InputError at the line
/// and column of one key, naming the other's.
void check_compatibility(const JsonNode& root, const JsonNode& engine, const Setting& setting);

/// docs/compatibility.md.
std::string compatibility_page();

} // namespace trireme::config
