#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/data/gzip.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data {

/// A text file read front to back in pieces, unpacked if it is gzip, without UTF-8's byte order mark. Memory: 64 kB.
class InputFile {
 public:
  /// Errors: InputError naming a file that is missing, empty, no file, or packed otherwise.
  explicit InputFile(const std::filesystem::path& path);

  /// Appends up to about `bytes` to `out`; false at the end. Errors: InputError for damaged gzip, and for a beginning
  /// that is UTF-16 or not text.
  bool read(std::string& out, size_t bytes);
  /// Of the file as it is on the disk: how far it was read.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  bool fill();
  size_t take(std::string& out, size_t bytes);

  std::string source_;
  Descriptor file_;
  std::string buffer_;
  std::string_view rest_; // of buffer_
  std::unique_ptr<GunzipStream> gzip_;
  int64_t bytes_read_ = 0;
  bool at_start_ = true;
};

} // namespace trireme::data
