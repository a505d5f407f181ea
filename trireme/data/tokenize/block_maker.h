#pragma once

#include <trireme/data/tokenize/block.h>
#include <trireme/data/tokenize/document_reader.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Bytes of a block: enough to hide the cost of handing it over, few enough that many fit into memory.
inline constexpr size_t kBlockBytes = size_t{256} << 10;
/// Bytes of the part before that a part of a long document begins with.
inline constexpr size_t kOverlapBytes = size_t{2} << 10;

/// Gathers the documents of a file in blocks, and cuts documents longer than a block into parts. Whether the ids of the
/// parts are those of the whole is found when they are encoded (part_joiner.h); here are the likely places.
class BlockMaker {
 public:
  explicit BlockMaker(std::function<void(Block)> give) : give_(std::move(give)) {}

  void add(const DocumentPiece& piece);
  /// Gives what is left of the documents so far. Each file ends with it.
  void flush();

 private:
  void add_to_document(std::string_view text);
  void give_part(size_t bytes, bool last);

  std::function<void(Block)> give_;
  Block documents_;
  // The document that is read, from its last cut on.
  std::string rest_;
  std::string overlap_;
  bool has_parts_ = false;
};

/// The best place in [from, to] to cut `text`, which is longer: between words, else between characters.
size_t cut_between_words(std::string_view text, size_t from, size_t to);

} // namespace trireme::data
