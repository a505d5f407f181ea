#pragma once

#include <trireme/base/error.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace trireme::test {

/// A small file system that shares blocks: an XFS in a file, mounted on `folder` while it lives. It needs root,
/// xfsprogs and the right to mount.
class XfsDisk {
 public:
  explicit XfsDisk(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    const std::string image = folder_.string() + ".image";
    is_mounted_ = ::geteuid() == 0 && run(concat("truncate -s 320M '", image, "' && mkfs.xfs -q -m reflink=1 '", image,
                                                 "' && mount -o loop '", image, "' '", folder_.string(), "'"));
  }
  ~XfsDisk() {
    if (is_mounted_) {
      run(concat("umount '", folder_.string(), "' || umount -l '", folder_.string(), "'"));
    }
    std::error_code ignored;
    std::filesystem::remove(folder_.string() + ".image", ignored);
  }
  XfsDisk(const XfsDisk&) = delete;
  XfsDisk& operator=(const XfsDisk&) = delete;

  bool is_mounted() const { return is_mounted_; }
  uintmax_t free_bytes() const {
    ::sync();
    return std::filesystem::space(folder_).available;
  }
  static constexpr const char* kNeeds = "needs root, mkfs.xfs (xfsprogs) and the right to mount";

 private:
  static bool run(const std::string& command) {
    return std::system(concat("{ ", command, "; } >/dev/null 2>&1").c_str()) == 0;
  }

  std::filesystem::path folder_;
  bool is_mounted_ = false;
};

} // namespace trireme::test
