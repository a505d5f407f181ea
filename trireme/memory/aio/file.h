#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/memory/aio/memory.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme::aio {

/// One file whose blocks are reserved. Copies share the open file, which is closed with the last copy and after the
/// last transfer.
///
/// Direct files bypass the page cache if the file system can (O_DIRECT): a finished write is on the disk and takes no
/// host memory. If the file system refuses, or needs more than kAlignment, files use the page cache. A write is then
/// finished once it is in the cache, and sync() may be the first to report an error of the disk. Blocks are reserved
/// either way, so that no write fails on a full disk.
class File {
 public:
  /// Creates the file, private to this user, and reserves its blocks, which read as zeros. It replaces an existing file
  /// (a link itself, not its target). `bytes` is rounded up to a multiple of kAlignment. If the file system cannot
  /// reserve, free space is only compared. Not `direct`: through the page cache. Errors: Error with the file, the
  /// wanted bytes and the free space; no file is left then.
  static File create(const std::filesystem::path& path, int64_t bytes, bool direct = true);
  /// Creates an unnamed file, which ends with the process in any case. Messages call it `path`; it lies in that folder.
  /// A file system without such files (O_TMPFILE; NFS) has its name until it is open. `folder`: a descriptor of its
  /// folder, which nobody can replace by another one; the file is then made with its name. -1: `path` gives the folder.
  static File create_unnamed(const std::filesystem::path& path, int64_t bytes, bool direct = true, int folder = -1);
  /// Opens an existing file, read-only if this user may not write it. Errors: Error with the file and the system's
  /// reason.
  static File open(const std::filesystem::path& path, bool direct = true);

  /// Enlarges the file to `bytes`, rounded up to a multiple of kAlignment, with reserved blocks. One thread at a time;
  /// transfers continue. Errors: Error, as create(); the file is unchanged then.
  void grow(int64_t bytes) const;

  const std::filesystem::path& path() const;
  /// Size in bytes, as opened or last grown.
  int64_t size() const;
  bool direct() const;
  int descriptor() const;
  /// Waits until all writes will survive a power failure. Transfers must be finished. Errors: Error.
  void sync() const;

 private:
  struct Opened;
  explicit File(std::shared_ptr<const Opened> opened);
  static File create(const std::filesystem::path& path, const std::filesystem::path& place, int64_t bytes, bool direct);
  static File sized(const std::filesystem::path& path, const std::filesystem::path& place, int64_t bytes,
                    Descriptor made, bool direct);
  std::shared_ptr<const Opened> opened_;
};

/// The multiple that offsets and addresses of direct transfers must have on the file system of `path`. 0: no direct
/// transfers; -1: unknown.
int64_t direct_alignment(const std::filesystem::path& path);

/// What to do about a full disk, in messages.
inline constexpr const char* kMakeRoom = "Make room there, or name a folder on another disk.";

/// ", 3.20 GB are free in /data" for messages; "" if unknown.
std::string free_space_near(const std::filesystem::path& path);

} // namespace trireme::aio
