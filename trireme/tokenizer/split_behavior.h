#pragma once

#include <trireme/tokenizer/pre_tokenizer.h>

#include <string_view>

namespace trireme::tokenizer {

/// What becomes of the matches of a pattern, and of the text between them, as Hugging Face's tokenizers names it.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Makes words out of neighbouring segments of a text, some of which are matches. Empty words are left out.
class Segments {
 public:
  Segments(Word text, Behavior behavior, WordSink next) : text_(text), behavior_(behavior), next_(next) {}

  /// The next segment: it begins where the one before it ended.
  void add(size_t end, bool is_match);
  /// After the last segment.
  void finish();

 private:
  void emit(size_t begin, size_t end) const {
    if (begin < end) {
      next_({text_.text.substr(begin, end - begin), text_.is_first && begin == 0});
    }
  }

  Word text_;
  Behavior behavior_;
  WordSink next_;
  size_t begin_ = 0;
  // A word that may still grow.
  size_t pending_ = 0;
  bool has_pending_ = false;
  bool previous_match_ = false;
};

} // namespace trireme::tokenizer
