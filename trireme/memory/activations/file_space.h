#pragma once

#include <trireme/memory/aio/file.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace trireme::activations {

/// Allocates pieces of a file in one folder; the file grows as needed. It has no name, so it ends with the process in
/// any case. Thread-safe.
class FileSpace : public std::enable_shared_from_this<FileSpace> {
 public:
  /// Creates the folder if it is missing.
  explicit FileSpace(std::filesystem::path folder);

  /// A piece of the file, freed with its last copy.
  struct Extent {
    const aio::File* file = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  /// `bytes` is a multiple of aio::kAlignment. First fit; the file grows if nothing fits. Errors: Error with the
  /// folder, the wanted bytes and the free space.
  std::shared_ptr<const Extent> take(int64_t bytes);
  /// Size of the file: the peak of its pieces, and fragmentation.
  int64_t bytes() const;
  /// Bytes that pieces may have at a time: the file's size, and an equal share of the disk's free space for each of the
  /// `ranks` that use it.
  int64_t room(int64_t ranks) const;

 private:
  int64_t place_for(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  int64_t size() const { return file_ ? file_->size() : 0; }

  const std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::optional<aio::File> file_;
  std::map<int64_t, int64_t> free_; // offset -> bytes
};

} // namespace trireme::activations
