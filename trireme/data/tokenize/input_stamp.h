#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <filesystem>

namespace trireme::data {

/// A file has changed while it was read: what was read is neither the earlier text nor the new one.
class ChangedInput : public InputError {
 public:
  using InputError::InputError;
};

/// Size and times of a file before it is read.
class InputStamp {
 public:
  /// A file that cannot be read has a stamp, too: reading it finds the error.
  explicit InputStamp(std::filesystem::path file);

  /// Errors: ChangedInput naming the file if it is gone or has another size or time.
  void check() const;

 private:
  bool operator==(const InputStamp&) const = default;

  std::filesystem::path file_;
  int64_t bytes_ = -1;
  int64_t modified_ns_ = 0;
  int64_t changed_ns_ = 0;
};

} // namespace trireme::data
