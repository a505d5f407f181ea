#pragma once

#include <trireme/aio/file.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

namespace trireme::activations {

/// Room in files of one folder. A file has no name: it goes with the process, however that ends. Any thread.
class FileSpace : public std::enable_shared_from_this<FileSpace> {
 public:
  /// The folder is made if it is missing. Files have at least `file_bytes`, or what one piece needs.
  explicit FileSpace(std::filesystem::path folder, int64_t file_bytes = int64_t{1} << 28);

  /// A piece of a file; free again with the last copy.
  struct Piece {
    const aio::File* file = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  /// `bytes` is a multiple of aio::kAlignment. First fit; where nothing fits one more file is made.
  /// Errors: Error with the folder, the bytes wanted and the free space.
  std::shared_ptr<const Piece> take(int64_t bytes);
  /// Of all files.
  int64_t bytes() const;

 private:
  struct Opened {
    aio::File file;
    std::map<int64_t, int64_t> free; // offset -> bytes
  };
  void give_back(Opened& opened, int64_t offset, int64_t bytes);

  const std::filesystem::path folder_;
  const int64_t file_bytes_;
  mutable std::mutex mutex_;
  std::deque<Opened> files_;
};

} // namespace trireme::activations
