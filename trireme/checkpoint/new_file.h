#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/checkpoint/hash.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// A file of known size that is written from front to back under a temporary name, hashed on the way, and removed again unless it is committed.
/// Errors: Error naming the file, the reason and, for a full disk, bytes needed and free.
class NewFile {
 public:
  NewFile(const std::filesystem::path& path, uint64_t total_bytes);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int descriptor() const {
    return fd_.get();
  }
  /// Whether the disk has room for all of it.
  bool has_room() const;
  /// Reserves what has no place on the disk yet, so that a full disk is found before gigabytes are written. File systems without fallocate() report it at write().
  void reserve();
  void write(const char* data, size_t bytes);
  /// The next `bytes` are in the file already: reads them, for the hash.
  void skip(uint64_t bytes);
  /// Makes it durable, gives it its name, and returns the hash of all of it.
  std::string commit();
  /// Removes the partial file first, so that "free" is right for the next attempt. `what`: "read", "write", ...; the reason is errno's.
  [[noreturn]] void fail(const char* what);

 private:
  void discard();

  std::filesystem::path path_;
  uint64_t total_bytes_;
  std::filesystem::path temporary_;
  Descriptor fd_;
  Hasher hasher_;
};

} // namespace trireme::checkpoint
