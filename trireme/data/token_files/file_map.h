#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>

struct stat;

namespace trireme::data {

/// A file mapped for reading. Memory: none of its own; pages are read when touched. A file must not be shortened while
/// it is mapped: the system then ends the program.
class FileMap {
 public:
  /// Errors: InputError naming the file if it cannot be opened, is not a file or is empty.
  explicit FileMap(const std::filesystem::path& path);
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  std::span<const unsigned char> bytes() const { return {data_, size_}; }
  /// The same file, unchanged, has the same stamp: device, inode, size and times.
  struct Stamp {
    uint64_t device;
    uint64_t inode;
    int64_t size;
    timespec modified;
    timespec changed;
  };
  const Stamp& stamp() const { return stamp_; }

 private:
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
  Stamp stamp_{};
};

/// Throws the InputError for a file of tokens that cannot be used.
[[noreturn]] void refuse_token_file(const std::filesystem::path& path, const std::string& why,
                                    const std::string& next = "");

} // namespace trireme::data
