#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/memory/aio/memory.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme::aio {

/// One file whose blocks are reserved. Copies are the same open file, which is closed with the last of them and after
/// the last transfer.
///
/// Direct files bypass the page cache, where the file system can (O_DIRECT): what was written is with the disk, and
/// takes no memory here. Other files (a file system that refuses, one that asks for more than kAlignment) are read and
/// written through the page cache: a write is finished when it is there, and an error of the disk may only be seen by
/// sync(). The blocks are reserved either way, so that a write finds no full disk.
class File {
 public:
  /// Makes the file, private to this user, in the place of one that is there (of a link, not of what it leads to), and
  /// reserves its blocks, which read as zeros. `bytes` is rounded up to a multiple of kAlignment. Where the file system
  /// cannot reserve, free space is only compared. Not `direct`: through the page cache. Errors: Error with the file,
  /// the bytes wanted and the free space; then there is no file.
  static File create(const std::filesystem::path& path, int64_t bytes, bool direct = true);
  /// The same without a name, so that it goes with the process, however that ends; `path` is what messages call it, and
  /// its folder is where it lies. On a file system that has no such files (O_TMPFILE; NFS) it has its name until it is
  /// open. `folder`: a descriptor of the folder where it lies, which nobody can then put another in the place of, and
  /// where it is made with its name; -1: `path` says it.
  static File create_unnamed(const std::filesystem::path& path, int64_t bytes, bool direct = true, int folder = -1);
  /// An existing file; only to read, where this user may not write it. Errors: Error with the file and the system's
  /// reason.
  static File open(const std::filesystem::path& path, bool direct = true);

  /// Makes the file larger, with its blocks reserved: `bytes` in all, rounded up to a multiple of kAlignment. One
  /// thread at a time; transfers go on. Errors: Error, as create(); the file is as it was then.
  void grow(int64_t bytes) const;

  const std::filesystem::path& path() const;
  /// Bytes, when it was opened, and since it grew.
  int64_t size() const;
  bool direct() const;
  int descriptor() const;
  /// Waits until all that was written will survive a power failure. Transfers must be finished. Errors: Error.
  void sync() const;

 private:
  struct Opened;
  explicit File(std::shared_ptr<const Opened> opened);
  static File create(const std::filesystem::path& path, const std::filesystem::path& place, int64_t bytes, bool direct);
  static File sized(const std::filesystem::path& path, const std::filesystem::path& place, int64_t bytes,
                    Descriptor made, bool direct);
  std::shared_ptr<const Opened> opened_;
};

/// What the file system of `path` says about its direct transfers: the multiple that offsets and addresses must be of,
/// 0: it has none, -1: it says nothing.
int64_t direct_alignment(const std::filesystem::path& path);

/// ", 3.20 GB are free in /data" for messages; "" if that is not known.
std::string free_space_near(const std::filesystem::path& path);

} // namespace trireme::aio
