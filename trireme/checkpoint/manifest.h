#pragma once

#include <trireme/checkpoint/region.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Version of the folder layout and of manifest.json that this program writes and reads.
inline constexpr int64_t kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
/// Metadata key in a rank's safetensors file for the save that it belongs to.
inline constexpr const char* kSaveIdKey = "trireme_save_id";

/// Location of one shard of a logical tensor.
struct StoredShard {
  /// Index into Manifest::files.
  size_t file = 0;
  /// Name inside that file.
  std::string key;
  Region region;
};

/// A logical tensor of the model or optimizer, however it was sharded over ranks.
struct TensorEntry {
  std::string name;
  /// "parameter", "buffer", "master", "optimizer", "rng", ...
  std::string kind;
  /// Safetensors name: "F32", "BF16", ...
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<StoredShard> shards;

  int64_t numel() const;
};

struct ShardFile {
  std::string name;
  int rank = 0;
  uint64_t bytes = 0;
  /// XXH3-128, 32 hexadecimal digits.
  std::string hash;
};

/// Summary of a checkpoint in manifest.json.
struct About {
  int64_t version = kFormatVersion;
  std::string tag;
  /// Digits at the end of the tag, -1 without any.
  int64_t step = -1;
  /// Counts saves in one folder; the newest checkpoint is the one with the largest.
  int64_t serial = 0;
  /// UTC, "2026-11-21T08:30:00Z".
  std::string created;
  int64_t world_size = 1;
  /// Random, also in every shard file, so that files of two saves are never mixed.
  std::string save_id;
};

/// manifest.json: the index of a checkpoint.
///
/// The first line holds the XXH3-128 of all bytes after it, so a flipped bit is
/// detected here too.
struct Manifest {
  About about;
  std::vector<ShardFile> files;
  std::map<std::string, TensorEntry, std::less<>> tensors;
  /// State of the job: sampler position, schedules, loss scale.
  nlohmann::json state;
  /// One per saving rank.
  std::vector<nlohmann::json> rank_states;
  nlohmann::json config;

  /// Errors: InputError for NaN or infinity and for text that is not UTF-8 (JSON has neither).
  std::string to_text() const;
  /// Checks hash, version and every number; shards cover their tensors exactly once.
  /// Errors: InputError naming `file` and the tensor.
  static Manifest parse(const std::string& text, const std::filesystem::path& file);
  static Manifest read(const std::filesystem::path& folder);
};

/// Reads only the `about` of a checkpoint folder; nullopt if it cannot be read.
std::optional<About> read_about(const std::filesystem::path& folder);

/// Refuses shards that do not cover their tensor exactly once. Errors: InputError naming `where` and the tensor.
void check_coverage(const TensorEntry& tensor, const std::string& where);

/// Refuses values that a checkpoint could not restore. Errors: InputError naming `what` and the key whose value is NaN,
/// infinite, not UTF-8, or nested too deep.
void check_storable(const nlohmann::json& json, const std::string& what);

} // namespace trireme::checkpoint
