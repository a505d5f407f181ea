#pragma once

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace trireme::aio {

/// A file system of 8 MiB in memory that only this process sees, and its children. It goes with the process. Before the process has threads.
class SmallDisk {
 public:
  static constexpr int64_t kBytes = int64_t{8} << 20;

  explicit SmallDisk(const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder);
    const std::string users = concat("0 ", ::geteuid(), " 1");
    const bool is_root = ::geteuid() == 0;
    if (::unshare(is_root ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) {
      skip_reason_ = concat("no mounts of one's own: ", std::strerror(errno));
      return;
    }
    if (!is_root) {
      write_proc("/proc/self/uid_map", users);
    }
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 || ::mount("tmpfs", folder.c_str(), "tmpfs", 0, concat("size=", kBytes).c_str()) != 0) {
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
  const std::string& skip_reason() const {
    return skip_reason_;
  }

 private:
  static void write_proc(const char* file, const std::string& text) {
    const int descriptor = ::open(file, O_WRONLY | O_CLOEXEC);
    [[maybe_unused]] const auto written = ::write(descriptor, text.data(), text.size());
    ::close(descriptor);
  }

  std::string skip_reason_;
  std::filesystem::path folder_;
};

} // namespace trireme::aio
