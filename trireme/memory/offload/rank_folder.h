#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/memory/aio/file.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme::offload {

/// The folder in which one rank's offloaded files are made, `parent`/<name>.rank<R>. It is this process's alone while
/// the object lives: a lock of the kernel's (flock), which ends with the process, however it ends.
///
/// Files in it are worth nothing after their process: those that an earlier one has left are removed at the start and
/// at the end, and then the folder. Removed are this user's files with names of ours only. What else lies there stays,
/// and the folder with it.
class RankFolder {
 public:
  /// Makes folder and parents where they are not there. `parent` may be a link, the folder itself may not. Errors:
  /// InputError when another process, or another engine of this one, uses it, naming the process where the kernel
  /// tells; for a link, another user's folder, or one that others may write to, in its place; and for a folder that
  /// cannot be made or locked.
  static std::shared_ptr<RankFolder> open(const std::filesystem::path& parent, int rank,
                                          const std::string& name = "trireme");
  ~RankFolder();
  RankFolder(const RankFolder&) = delete;
  RankFolder& operator=(const RankFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }
  /// A file without a name, for `kind` ("optimizer states", ...), so that it goes with the process. Errors:
  /// aio::File::create_unnamed().
  aio::File make_file(const std::string& kind, int64_t number, int64_t bytes) const;

 private:
  RankFolder(std::filesystem::path path, Descriptor above, Descriptor lock)
      : path_(std::move(path)), above_(std::move(above)), lock_(std::move(lock)) {}

  std::filesystem::path path_;
  Descriptor above_; // the folder that it lies in
  Descriptor lock_;
};

} // namespace trireme::offload
