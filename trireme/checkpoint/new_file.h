#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/checkpoint/hash.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// A file of known size, written front to back under a temporary name, hashed meanwhile, and removed unless committed.
/// Errors: Error naming the file, the reason and, for a full disk, bytes needed and free.
class NewFile {
 public:
  NewFile(const std::filesystem::path& path, uint64_t total_bytes);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int descriptor() const { return fd_.get(); }
  /// True if the disk has room for all of it.
  bool has_room() const;
  /// Reserves the bytes without blocks on the disk, so that a full disk is found before gigabytes are written. File
  /// systems without fallocate() report it at write().
  void reserve();
  /// Declares that bytes [begin, end) should be in the file already, as shared blocks. They must follow all written
  /// bytes and earlier declared ranges.
  void expect_there(uint64_t begin, uint64_t end);
  /// Reads and compares bytes that should be in the file already, and writes them only if they differ: this repairs
  /// bytes that the disk has changed.
  void write(const char* data, size_t bytes);
  /// Writes zeros, or keeps declared bytes.
  void pad(uint64_t bytes);
  uint64_t bytes_there() const;
  /// Declared bytes that differed and were written.
  uint64_t replaced_bytes() const { return replaced_bytes_; }
  /// Makes the file durable, renames it into place, and returns the hash of its content.
  std::string commit();
  /// Removes the partial file first, so that "free" is right for the next attempt. `what`: "read", "write", ...; the
  /// reason is errno's.
  [[noreturn]] void fail(const char* what);

 private:
  struct Blocks {
    uint64_t begin;
    uint64_t end;
  };
  struct Extent {
    size_t bytes;
    bool is_there;
  };
  Extent next_piece(uint64_t bytes);
  void put(const char* data, size_t bytes);
  void read_back(char* data, size_t bytes);
  void discard();

  std::filesystem::path path_;
  uint64_t total_bytes_;
  std::filesystem::path temporary_;
  Descriptor fd_;
  Hasher hasher_;
  uint64_t position_ = 0;
  std::vector<Blocks> there_;
  size_t next_there_ = 0;
  uint64_t replaced_bytes_ = 0;
  std::vector<char> buffer_; // for reading back
};

} // namespace trireme::checkpoint
