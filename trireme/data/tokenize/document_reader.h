#pragma once

#include <trireme/data/tokenize/input_file.h>
#include <trireme/data/tokenize/json_line.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::data {

/// A document, or a piece of one.
struct DocumentPiece {
  std::string text;
  bool begins = false;
  bool ends = false;
  /// Not 0: `text` is this line of the file, whose document LineEncoder has yet to take: that is other threads' work.
  int64_t json_line = 0;
};

/// Reads the documents of a file: a .jsonl or .jsonl.gz has one in each line that is not blank, any other file is one.
/// Memory: a piece of a file, or a line of up to 32 MB with its text.
class DocumentReader {
 public:
  /// Errors: InputError as InputFile, and for a name that says JSON without lines or Parquet.
  DocumentReader(const std::filesystem::path& path, JsonLineOptions lines);

  /// The next piece; false at the end. A file of text has pieces of up to `bytes`; the text of a longer JSON line is
  /// taken here, so that it can be cut. Errors: InputError naming file and line.
  bool next(DocumentPiece& piece, size_t bytes);
  int64_t bytes_read() const { return file_.bytes_read(); }

 private:
  bool next_piece(DocumentPiece& piece, size_t bytes);
  bool next_line(std::string& line);

  std::string source_;
  JsonLineOptions lines_;
  InputFile file_;
  bool json_lines_;
  std::string buffer_;
  size_t at_ = 0; // in buffer_
  int64_t line_ = 0;
  bool begun_ = false;
  bool ended_ = false;
};

} // namespace trireme::data
