#pragma once

#include <trireme/memory/aio/options.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::aio {

/// What a folder's disk is capable of.
struct Probe {
  /// Whether transfers bypass the page cache there.
  bool direct = false;
  /// What the file system says that offsets and addresses of direct transfers must be multiples of; kAlignment where it
  /// says nothing, 1 where they are not direct.
  int64_t alignment = 1;
  /// For this user.
  int64_t free_bytes = 0;
  /// By blocks of block_size, queue_depth of them at a time, one after the other in the file.
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  /// As Transfers::engine().
  const char* engine = "";
  /// "ext4", "tmpfs" and so on; "" if the system does not say.
  std::string filesystem;
};

/// Measures with a file of `bytes` (rounded to whole blocks, at least one) in the folder, which is written twice,
/// because the first time costs more, and read once; no pass takes much more than two seconds. The file has no name any
/// more when that begins, so nothing is left, whatever happens. What is not direct is measured to the disk: writes with
/// their sync, reads from an emptied cache where the system empties it. Errors: Error if the folder cannot be written,
/// or has not so much room.
Probe probe(const std::filesystem::path& folder, const Options& options, int64_t bytes);

/// Whether files of such a file system are memory, although they may be opened for direct transfers.
bool is_memory(const std::string& filesystem);

/// "ext4", "tmpfs" and so on; "" if the system does not say.
std::string filesystem_of(const std::filesystem::path& path);

} // namespace trireme::aio
