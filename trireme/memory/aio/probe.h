#pragma once

#include <trireme/memory/aio/options.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::aio {

/// Measured properties of a folder's disk.
struct Probe {
  /// Whether transfers bypass the page cache.
  bool direct = false;
  /// The multiple that the file system needs for offsets and addresses of direct transfers; kAlignment if unknown, 1 if
  /// transfers are not direct.
  int64_t alignment = 1;
  /// Free bytes for this user.
  int64_t free_bytes = 0;
  /// With blocks of block_size, queue_depth of them at a time, in the order of the file.
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  /// As Transfers::engine().
  const char* engine = "";
  /// "ext4", "tmpfs" and so on; "" if unknown.
  std::string filesystem;
};

/// Measures with a file of `bytes` (rounded to full blocks, at least one) in the folder. It is written twice, because
/// the first time is slower, and read once; no pass takes much more than two seconds. The file has no name by then, so
/// nothing is left. Without direct transfers the disk is measured, not the cache: writes include their sync, and reads
/// follow an emptied cache if the system empties it. Errors: Error if the folder is not writable or has too little
/// space.
Probe probe(const std::filesystem::path& folder, const Options& options, int64_t bytes);

/// Whether files of such a file system are in memory, even if they can be opened for direct transfers.
bool is_memory(const std::string& filesystem);

/// "ext4", "tmpfs" and so on; "" if unknown.
std::string filesystem_of(const std::filesystem::path& path);

} // namespace trireme::aio
