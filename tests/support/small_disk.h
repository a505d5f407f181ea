#pragma once

#include <filesystem>
#include <string>

#include <sys/mount.h>

namespace trireme::test {

/// A file system with room for so many bytes, in a new folder, until it goes. Not there where this user may not mount
/// one.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path folder, int64_t bytes) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    exists_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
  }
  ~SmallDisk() {
    if (exists_) {
      ::umount2(folder_.c_str(), MNT_DETACH);
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool exists() const { return exists_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  bool exists_ = false;
};

} // namespace trireme::test
