#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/memory/aio/file.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme::offload {

/// The folder of one rank's offloaded files, `parent`/<name>.rank<R>. This process owns it exclusively while the object
/// lives, by a kernel lock (flock) that ends with the process in any case.
///
/// Files in it are useless after their process. Those of an earlier one are removed at the start and at the end, then
/// the folder. Only this user's files with our names are removed. Other files stay, and then the folder does, too.
class RankFolder {
 public:
  /// Creates the folder and its missing parents. `parent` may be a link, the folder itself may not. Errors: InputError
  /// if another process, or another engine of this one, uses the folder; it names the process if the kernel tells.
  /// InputError also for a link, another user's folder or one that others may write to, and if the folder cannot be
  /// made or locked.
  static std::shared_ptr<RankFolder> open(const std::filesystem::path& parent, int rank,
                                          const std::string& name = "trireme");
  ~RankFolder();
  RankFolder(const RankFolder&) = delete;
  RankFolder& operator=(const RankFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// An unnamed file for `kind` ("optimizer states", ...), which ends with the process. Errors:
  /// aio::File::create_unnamed().
  aio::File make_file(const std::string& kind, int64_t number, int64_t bytes) const;

 private:
  RankFolder(std::filesystem::path path, Descriptor above, Descriptor lock)
      : path_(std::move(path)), above_(std::move(above)), lock_(std::move(lock)) {}

  std::filesystem::path path_;
  Descriptor above_; // its parent folder
  Descriptor lock_;
};

} // namespace trireme::offload
