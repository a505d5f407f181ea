#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/checkpoint/hash.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// A file of known size that is written from front to back under a temporary name, hashed on the way, and removed again
/// unless it is committed. Errors: Error naming the file, the reason and, for a full disk, bytes needed and free.
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
  /// Reserves what has no place on the disk yet, so that a full disk is found before gigabytes are written. File
  /// systems without fallocate() report it at write().
  void reserve();
  /// Says that bytes [begin, end) of the file, behind what is written so far and behind what was said before, are there
  /// already, or should be: shared blocks.
  void expect_there(uint64_t begin, uint64_t end);
  /// Where something should be there already it is read and compared, and written only if it is something else: what
  /// the disk has changed does not stay.
  void write(const char* data, size_t bytes);
  /// Zeros, or what is there already.
  void pad(uint64_t bytes);
  uint64_t bytes_there() const;
  /// Of those that were to be there: how many bytes were written all the same.
  uint64_t replaced_bytes() const {
    return replaced_bytes_;
  }
  /// Makes it durable, gives it its name, and returns the hash of all of it.
  std::string commit();
  /// Removes the partial file first, so that "free" is right for the next attempt. `what`: "read", "write", ...; the
  /// reason is errno's.
  [[noreturn]] void fail(const char* what);

 private:
  struct Blocks {
    uint64_t begin;
    uint64_t end;
  };
  struct Piece {
    size_t bytes;
    bool is_there;
  };
  Piece next_piece(uint64_t bytes);
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
  std::vector<char> buffer_; // of what is read back
};

} // namespace trireme::checkpoint
