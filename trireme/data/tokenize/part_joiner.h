#pragma once

#include <trireme/data/tokenize/block.h>
#include <trireme/data/tokenize/line_encoder.h>
#include <trireme/tokenizer/tokenizer.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace trireme::data {

/// Encodes a block of the file `source`. Any thread may do it. Errors are kept in the block.
void encode_block(Block& block, const tokenizer::Tokenizer& tokenizer, const LineEncoder& lines,
                  const std::string& source);

/// Makes sure that the ids of a document's parts are those of the whole document.
///
/// A part begins with an overlap, the end of the part before. Their ids fit together if those of the overlap are the
/// same in three texts: alone, at the end of the part before, and (from its middle on, where the arbitrary beginning of
/// the overlap no longer matters) before this part. Words and tokens are found from left to right, so from there on the
/// whole text has the same ones. Ids that repeat themselves prove nothing. Where they do not fit, the parts are encoded
/// again as one, which grows until a part fits. Each time it is twice as long, so that text which cannot be cut costs
/// about two passes.
class PartJoiner {
 public:
  using Emit = std::function<void(std::span<const int32_t>)>;

  /// `emit` gets the ids of documents, in order.
  PartJoiner(const tokenizer::Tokenizer& tokenizer, Emit emit)
      : tokenizer_(tokenizer),
        is_bytes_(dynamic_cast<const tokenizer::ByteTokenizer*>(&tokenizer) != nullptr),
        emit_(std::move(emit)) {}

  /// Takes the next part, encoded. Errors: InputError naming `source` if more than 32 MB of text cannot be cut.
  void add(Block part, const std::string& source);
  /// Parts that did not fit the one before.
  int64_t num_joined() const { return num_joined_; }

 private:
  void join(const Block& part, const std::string& source);
  bool can_follow(const Block& part) const;
  void encode_again(const std::string& source);

  const tokenizer::Tokenizer& tokenizer_;
  bool is_bytes_; // whose parts always fit
  Emit emit_;
  std::optional<Block> held_; // the last part, until the next one fits
  size_t encoded_bytes_ = 0;  // of its text; less than all while parts are joined
  int64_t num_joined_ = 0;
};

} // namespace trireme::data
