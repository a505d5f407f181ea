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

/// What a C++ program gives initialize() beside the configuration, as InitializeOptions names it.
struct ProgramOptions {
  bool pipeline = false; // a PipelineModule; else a model in one piece
  bool optimizer = false;
  bool parameter_groups = false;
  bool lr = false;
  bool gradient_sync = false;
  bool placement = false; // or reduce_groups
  bool state_store = false;
  bool replica = false;
  bool server_worker = false;
};

/// What decides whether the parts of a run go together. Without `run` and `program`: an engine section by itself.
/// References must outlive it.
struct Setting {
  const EngineConfig& engine;
  /// The run file, or null for a program.
  const RunConfig* run = nullptr;
  /// Absent for a run file.
  std::optional<ProgramOptions> program = std::nullopt;
  /// What ranks train on, such as "cuda:0"; empty: the CPU, or not known before ranks start.
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

/// One thing that a run can ask for.
struct Feature {
  /// What the page calls it.
  std::string_view name;
  /// Where a run file asks for it, the first path that is there: "parallel.sync engine.parameter_averaging".
  /// Empty: only programs do.
  std::string_view keys;
  bool (*is_on)(const Setting&);
  /// What errors call it, such as "ZeRO stage 2". Null: its name.
  std::string (*said)(const Setting&) = nullptr;

  std::string text(const Setting& setting) const;
};

/// None of `these` goes with any of `those`.
struct Incompatible {
  std::vector<Feature> these;
  std::vector<Feature> those;
  std::string_view why;
  /// What to do instead.
  std::string_view instead;
};

/// The table. Run files, initialize(), estimates and plans check it; docs/compatibility.md is printed from it.
const std::vector<Incompatible>& incompatible_features();

/// Two things of a setting that do not go together.
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
