#pragma once

#include <trireme/base/json.h>
#include <trireme/tokenizer/function_ref.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// A part of a text that a model encodes alone.
struct Word {
  std::string_view text;
  /// Whether it begins where the whole text begins.
  bool is_first = false;
};

using WordSink = FunctionRef<void(Word)>;

/// Splits text into words. All members are const and thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  /// Calls `next` with the words of `text`, in order. They may be other text: their memory is valid during the call.
  virtual void split(Word text, WordSink next) const = 0;

  /// Returns the end of a word of `text` that begins at byte `at`, if words depend on nothing before that; else 0. The
  /// words of split() are then [0, end), [end, ...), all of them parts of `text`. Needs at < text.size().
  virtual size_t word_end(std::string_view text, size_t at) const;
};

/// The steps of a pre-tokenizer. Each splits the words of the one before it.
struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  /// Whether a last step, ByteLevel, turns the bytes of words into characters. It is left to the caller: words that
  /// were seen before need not be turned again.
  bool byte_chars = false;
};

/// Reads "pre_tokenizer" of a tokenizer.json: Sequence, BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits,
/// FixedLength, Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit. Errors: InputError naming any other.
PreTokenizers read_pre_tokenizers(const JsonNode& node);

} // namespace trireme::tokenizer
