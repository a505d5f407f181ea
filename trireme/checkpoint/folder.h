#pragma once

#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/staging.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

// The folder of checkpoints on disk: global_step<N>/ ..., latest, and the partial files of a killed save
// (staging.h), which are never read. .old-<tag> is an intact checkpoint that was being replaced.
namespace trireme::checkpoint {

inline constexpr const char* kLatestName = "latest";

/// The reason why the text cannot be a tag, or "".
std::string tag_problem(const std::string& tag);
/// Digits at the end of the tag, -1 without any.
inline int64_t step_of(const std::string& tag) {
  const size_t digits = tag.find_last_not_of("0123456789") + 1;
  return digits < tag.size() && tag.size() - digits <= 18 ? std::stoll(tag.substr(digits)) : -1;
}

/// Returns `checkpoints` in a run folder of `trireme train`; any other path, and a folder that holds checkpoints
/// itself, unchanged. Functions that open, find or describe checkpoints look there.
inline std::filesystem::path checkpoints_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path below = path / "checkpoints";
  const bool has_its_own =
      std::filesystem::exists(path / kManifestName, error) || std::filesystem::exists(path / kLatestName, error);
  return !has_its_own && std::filesystem::is_directory(below, error) ? below : path;
}

struct FoundCheckpoint {
  std::filesystem::path folder;
  /// nullopt when the manifest cannot be read.
  std::optional<About> about;
};

/// Lists every checkpoint in `root`, newest first, those without a readable manifest last. Errors: InputError if `root`
/// cannot be read.
std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& root);

/// The same in the order to open them: the one that `latest` names comes first, even if a user made it name an older
/// one. Only newer ones that were written after `latest` come before it: their saves were killed before they wrote
/// it.
std::vector<FoundCheckpoint> list_to_open(const std::filesystem::path& root, const std::string& latest);

/// The tag in root/latest, "" without a valid one.
std::string read_latest(const std::filesystem::path& root);

/// Renames the staged checkpoint to `folder`, which may exist: at every moment list_checkpoints()
/// finds one of the two intact. Durable when it returns.
/// Errors: Error with the reason, also if something else is named .old-<tag>.
void put_in_place(Staging& staging, const std::filesystem::path& folder);

/// Undoes put_in_place() as far as the disk allows: restores the earlier checkpoint in `folder` and stages the new one
/// again.
void take_back(const Staging& staging, const std::filesystem::path& folder) noexcept;

/// Removes replaced checkpoints and all but `tag` and the `keep_last` newest. Keeps damaged folders and renamed
/// checkpoints. Never throws: warns of a checkpoint that cannot be removed.
void remove_old(const std::filesystem::path& root, const std::string& tag, int64_t keep_last,
                Staging& staging) noexcept;

/// Describes the damage of one file of a checkpoint and names its tensors; "" if it is intact. Cost: with the hash, one
/// read of the file.
std::string file_problem(const std::filesystem::path& folder, const Manifest& manifest, size_t file, bool verify_hash);

} // namespace trireme::checkpoint
