#pragma once

#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/staging.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

// The folder of checkpoints on disk: global_step<N>/ ..., latest, and what a killed save leaves
// (staging.h; it is never read. .old-<tag> is a whole checkpoint that was being replaced).
namespace trireme::checkpoint {

inline constexpr const char* kLatestName = "latest";

/// Why the text cannot be a tag, or "".
std::string tag_problem(const std::string& tag);
/// Digits at the end of the tag, -1 without any.
inline int64_t step_of(const std::string& tag) {
  const size_t digits = tag.find_last_not_of("0123456789") + 1;
  return digits < tag.size() && tag.size() - digits <= 18 ? std::stoll(tag.substr(digits)) : -1;
}

/// `checkpoints` in a run folder of `trireme train`; any other path as it is, as is a folder that holds checkpoints itself. What opens,
/// finds or describes checkpoints looks there.
inline std::filesystem::path checkpoints_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path below = path / "checkpoints";
  const bool has_its_own = std::filesystem::exists(path / kManifestName, error) || std::filesystem::exists(path / kLatestName, error);
  return !has_its_own && std::filesystem::is_directory(below, error) ? below : path;
}

struct FoundCheckpoint {
  std::filesystem::path folder;
  /// nullopt when the manifest cannot be read.
  std::optional<About> about;
};

/// Every checkpoint in `root`, newest first, those without a readable manifest last. Errors: InputError where `root` cannot be read.
std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& root);

/// The tag in root/latest, "" when there is none that makes sense.
std::string read_latest(const std::filesystem::path& root);

/// Puts the staged checkpoint in the place of `folder`, which may exist: one of the two is whole
/// under a name that list_checkpoints() finds, at every moment. Durable when it returns.
/// Errors: Error with the reason; also where something else has the name .old-<tag>.
void put_in_place(Staging& staging, const std::filesystem::path& folder);

/// Undoes put_in_place() as far as the disk lets it: the earlier checkpoint is `folder` again, the new one staged.
void take_back(const Staging& staging, const std::filesystem::path& folder) noexcept;

/// Removes all but the `keep_last` newest and `tag`, and replaced ones. Damaged folders stay, and checkpoints that somebody gave
/// another name. Never throws: a checkpoint that cannot be removed is a warning.
void remove_old(const std::filesystem::path& root, const std::string& tag, int64_t keep_last, Staging& staging) noexcept;

/// What is wrong with one file of a checkpoint, with the tensors it holds, or "".
/// Cost: with the hash, one read of the file.
std::string file_problem(const std::filesystem::path& folder, const Manifest& manifest, size_t file, bool verify_hash);

} // namespace trireme::checkpoint
