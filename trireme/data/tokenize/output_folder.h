#pragma once

#include <trireme/base/descriptor.h>

#include <filesystem>

namespace trireme::data {

/// A folder that appears whole or not at all: it is made under another name beside, and renamed at the end.
class OutputFolder {
 public:
  /// Makes the temporary folder, and removes those that killed processes left. Errors: InputError if `path` is there,
  /// unless it is an empty folder, or a folder of token shards and `replace` is set; Error if the system refuses.
  OutputFolder(const std::filesystem::path& path, bool replace);
  /// Removes the temporary folder unless it was committed.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Where to write.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Absolute.
  const std::filesystem::path& path() const { return path_; }
  /// Gives the folder its name, in place of an earlier one. Its files must be on the disk.
  void commit();

 private:
  void remove_abandoned() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Descriptor lock_; // held as long as this process writes
};

} // namespace trireme::data
