#pragma once

#include <trireme/base/descriptor.h>

#include <filesystem>
#include <memory>
#include <string>

namespace trireme::offload {

/// The folder in which one rank's offloaded files are made, `parent`/<name>.rank<R>. It is this process's alone while the object lives: a lock of the
/// kernel's (flock), which ends with the process, however it ends.
///
/// Files in it are worth nothing after their process, so whatever an earlier one has left is removed at the start, and the folder at the end.
class RankFolder {
 public:
  /// Makes folder and parents where they are not there. Errors: InputError when another process, or another engine of this one, uses it, naming the
  /// process where the kernel tells; and for a folder that cannot be made or locked.
  static std::shared_ptr<RankFolder> open(const std::filesystem::path& parent, int rank, const std::string& name = "trireme");
  ~RankFolder();
  RankFolder(const RankFolder&) = delete;
  RankFolder& operator=(const RankFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  RankFolder(std::filesystem::path path, Descriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::filesystem::path path_;
  Descriptor lock_;
};

} // namespace trireme::offload
