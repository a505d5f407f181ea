#pragma once

#include <trireme/data/tokenize/input_file.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// The text of several files as one, read front to back: what read_texts() (text.h) returns, in pieces. Memory: a
/// piece.
class TextStream {
 public:
  static constexpr uint64_t kToTheEnd = UINT64_MAX;

  explicit TextStream(const std::vector<std::filesystem::path>& files) : files_(files) {}

  /// The next piece, none of which is behind the first character that begins at byte `end` of the text or later; false
  /// when there is no more. Errors: InputError as InputFile.
  bool next(uint64_t end, std::string& piece);

 private:
  bool fill();

  const std::vector<std::filesystem::path>& files_;
  size_t opened_ = 0;
  std::unique_ptr<InputFile> file_;
  std::string rest_;
  uint64_t position_ = 0; // of rest_ in the text
};

} // namespace trireme::data
