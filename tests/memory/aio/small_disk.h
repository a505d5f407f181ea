#pragma once

#include <trireme/base/error.h>

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace trireme::aio {

/// A file system of 8 MiB in memory that only this process sees, and its children; for root. It goes with the process.
/// Before the process has threads.
class SmallDisk {
 public:
  static constexpr int64_t kBytes = int64_t{8} << 20;

  explicit SmallDisk(const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder);
    if (::unshare(CLONE_NEWNS) != 0) {
      skip_reason_ = concat("only root has mounts of its own: ", std::strerror(errno));
      return;
    }
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.c_str(), "tmpfs", 0, concat("size=", kBytes).c_str()) != 0) {
      skip_reason_ = concat("no small tmpfs: ", std::strerror(errno));
      return;
    }
    folder_ = folder;
  }
  ~SmallDisk() {
    if (!folder_.empty()) {
      ::umount2(folder_.c_str(), MNT_DETACH);
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  const std::string& skip_reason() const { return skip_reason_; }

 private:
  std::string skip_reason_;
  std::filesystem::path folder_;
};

} // namespace trireme::aio
