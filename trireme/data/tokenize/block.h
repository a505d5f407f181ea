#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace trireme::data {

/// What one thread encodes at a time: some documents of a file, or a part of a long one.
struct Block {
  std::string text;
  size_t input = 0;       ///< the number of its file
  int64_t bytes_read = 0; ///< of all files, when it was made

  // documents
  std::vector<size_t> ends;        ///< of each, in text
  std::vector<int64_t> json_lines; ///< DocumentPiece::json_line

  // a part
  bool is_part = false;
  bool begins = false; ///< the document
  bool ends_document = false;
  size_t overlap = 0; ///< bytes of text that the part before has too, at its end

  // what encode_block() makes
  int64_t text_bytes = 0;       ///< of documents
  std::vector<int32_t> ids;     ///< without those of the overlap
  std::vector<size_t> id_ends;  ///< of each document, in ids
  std::vector<bool> have_end;   ///< of each document: EncodedLine::has_end
  std::vector<uint8_t> counted; ///< of each of ids, as EncodedLine::counted; empty: all count
  std::vector<int32_t> overlap_ids;
  bool fits = true; ///< the ids of the overlap do not depend on the text behind it
  std::exception_ptr error{};
};

} // namespace trireme::data
