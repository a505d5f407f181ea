#pragma once

#include <trireme/base/descriptor.h>

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// The temporary files of a save, in `root`:
///
///   .tmp-<tag>-<id>                the checkpoint; after an exchange, the earlier one
///   .tmp-<tag>-<id>.latest         the new `latest`
///   .tmp-<tag>-<id>.removed<n>     older checkpoints to be removed
///   .tmp-<tag>-<id>.trireme-save   the claim: created first, removed last, locked while the save runs
///
/// Rank 0 of a save holds one. The destructor removes all files that were not renamed.
class Staging {
 public:
  /// Creates the claim and the folder. `save_id`: 32 hexadecimal digits. Errors: Error when the system refuses.
  Staging(const std::filesystem::path& root, const std::string& tag, const std::string& save_id);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// The folder that the ranks of a save write to.
  static std::filesystem::path folder_of(const std::filesystem::path& root, const std::string& tag,
                                         const std::string& save_id);

  const std::filesystem::path& folder() const { return stem_; }
  std::filesystem::path latest() const;
  /// Returns a new name each time.
  std::filesystem::path removed();

 private:
  std::filesystem::path stem_;
  Descriptor claim_;
  int removed_ = 0;
};

/// Removes the files of killed saves: those named after an unlocked claim, and nothing else. Removes nothing if the
/// file system has no locks (flock).
void remove_dead_stagings(const std::filesystem::path& root);

} // namespace trireme::checkpoint
