#pragma once

#include <trireme/base/descriptor.h>

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// What a save puts on disk before it has its name, in `root`:
///
///   .tmp-<tag>-<id>                the checkpoint; after an exchange, the one that was there before
///   .tmp-<tag>-<id>.latest         the new `latest`
///   .tmp-<tag>-<id>.removed<n>     older checkpoints on their way out
///   .tmp-<tag>-<id>.trireme-save   the claim: the first to come and the last to go, locked while the save lives
///
/// Rank 0 of a save holds one; all of it is gone when it ends, but for what has got its name by then.
class Staging {
 public:
  /// `save_id`: 32 hexadecimal digits. Makes the claim and the folder. Errors: Error when the system refuses.
  Staging(const std::filesystem::path& root, const std::string& tag, const std::string& save_id);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Where the ranks of a save write.
  static std::filesystem::path folder_of(const std::filesystem::path& root, const std::string& tag, const std::string& save_id);

  const std::filesystem::path& folder() const {
    return stem_;
  }
  std::filesystem::path latest() const;
  /// A new name each time.
  std::filesystem::path removed();

 private:
  std::filesystem::path stem_;
  Descriptor claim_;
  int removed_ = 0;
};

/// Removes what killed saves left: what is named after a claim that nobody holds. Nothing else, whatever its name. Where
/// the file system has no locks (flock), everything stays.
void remove_dead_stagings(const std::filesystem::path& root);

} // namespace trireme::checkpoint
