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

  /// Where a text may be cut, so that its words are those of the parts.
  struct Cut {
    size_t end = 0; // 0: nowhere
    /// [begin, end) is a word as it is, to which split() must not be applied alone.
    bool is_word = false;
  };
  /// Returns the next place behind `begin`, which is 0 or such a place: it depends on nothing before `begin`. At the
  /// latest it is the end of `text`. Needs begin < text.size().
  virtual Cut next_cut(std::string_view text, size_t begin) const;
  /// Whether where words begin depends on the number of characters before.
  virtual bool counts_characters() const { return false; }
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
