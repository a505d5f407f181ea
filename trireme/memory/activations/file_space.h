#pragma once

#include <trireme/memory/aio/file.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace trireme::activations {

/// Room in a file of one folder, which grows by what pieces need. The file has no name: it goes with the process,
/// however that ends. Any thread.
class FileSpace : public std::enable_shared_from_this<FileSpace> {
 public:
  /// The folder is made if it is missing.
  explicit FileSpace(std::filesystem::path folder);

  /// A piece of the file; free again with the last copy.
  struct Extent {
    const aio::File* file = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  /// `bytes` is a multiple of aio::kAlignment. First fit; where nothing fits the file grows.
  /// Errors: Error with the folder, the bytes wanted and the free space.
  std::shared_ptr<const Extent> take(int64_t bytes);
  /// Of the file: the most that pieces have had at a time, and what was lost between them.
  int64_t bytes() const;
  /// Bytes that pieces may have at a time: the file's, and an equal share of what its disk has free for each of the
  /// `ranks` that use it.
  int64_t room(int64_t ranks) const;

 private:
  int64_t place_for(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  int64_t size() const {
    return file_ ? file_->size() : 0;
  }

  const std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::optional<aio::File> file_;
  std::map<int64_t, int64_t> free_; // offset -> bytes
};

} // namespace trireme::activations
