#include <trireme/tokenizer/pre_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/tokenizer/byte_alphabet.h>
#include <trireme/tokenizer/expression.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/split_behavior.h>
#include <trireme/tokenizer/unicode.h>

#include <optional>
#include <string>
#include <utility>

namespace trireme::tokenizer {
namespace {

constexpr const char* kGpt2Expression = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Split: by the matches of an expression.
class SplitByExpression final : public PreTokenizer {
 public:
  SplitByExpression(Expression expression, Behavior behavior, bool invert)
      : expression_(std::move(expression)), behavior_(behavior), invert_(invert) {}

  void split(Word text, WordSink next) const override {
    Segments segments(text, behavior_, next);
    size_t done = 0;
    Matches matches(expression_, text.text);
    while (const auto match = matches.next()) {
      if (done != match->begin) {
        segments.add(match->begin, invert_);
      }
      segments.add(match->end, !invert_);
      done = match->end;
    }
    if (done != text.text.size()) {
      segments.add(text.text.size(), invert_);
    }
    segments.finish();
  }

  Cut next_cut(std::string_view text, size_t begin) const override {
    if (behavior_ != Behavior::isolated) {
      return {};
    }
    const std::optional<Match> match = expression_.find(text, begin);
    if (!match) {
      return {text.size(), true};
    }
    if (match->begin == match->end) { // whether it counts depends on the match before it
      return {};
    }
    return {match->begin > begin ? match->begin : match->end, true};
  }

 private:
  Expression expression_;
  Behavior behavior_;
  bool invert_;
};

// By a property of characters.
template <typename IsMatch>
class SplitByChar final : public PreTokenizer {
 public:
  SplitByChar(IsMatch is_match, Behavior behavior) : is_match_(std::move(is_match)), behavior_(behavior) {}

  void split(Word text, WordSink next) const override {
    Segments segments(text, behavior_, next);
    size_t done = 0;
    for (size_t at = 0; at < text.text.size();) {
      const Char c = char_at(text.text, at);
      if (is_match_(c.code)) {
        if (done < at) {
          segments.add(at, false);
        }
        segments.add(at + c.bytes, true);
        done = at + c.bytes;
      }
      at += c.bytes;
    }
    if (done < text.text.size()) {
      segments.add(text.text.size(), false);
    }
    segments.finish();
  }

  Cut next_cut(std::string_view text, size_t begin) const override {
    if (behavior_ != Behavior::removed && behavior_ != Behavior::isolated) {
      return {};
    }
    bool is_match = false;
    for (size_t at = begin; at < text.size() && !is_match;) {
      const Char c = char_at(text, at);
      is_match = is_match_(c.code);
      begin = at += c.bytes;
    }
    return {begin};
  }

 private:
  IsMatch is_match_;
  Behavior behavior_;
};

template <typename IsMatch>
std::unique_ptr<PreTokenizer> by_char(IsMatch is_match, Behavior behavior) {
  return std::make_unique<SplitByChar<IsMatch>>(std::move(is_match), behavior);
}

// Runs of letters, digits and the like, and runs of other characters; white space is removed: \w+|[^\w\s]+
class Whitespace final : public PreTokenizer {
 public:
  void split(Word text, WordSink next) const override {
    enum class Kind { space, word, other };
    Kind kind = Kind::space;
    size_t begin = 0;
    const auto end_at = [&](size_t end) {
      if (kind != Kind::space && begin < end) {
        next({text.text.substr(begin, end - begin), text.is_first && begin == 0});
      }
      begin = end;
    };
    for (size_t at = 0; at < text.text.size();) {
      const Char c = char_at(text.text, at);
      const Kind found = is_word(c.code) ? Kind::word : is_space(c.code) ? Kind::space : Kind::other;
      if (found != kind) {
        end_at(at);
        kind = found;
      }
      at += c.bytes;
    }
    end_at(text.text.size());
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}
  bool counts_characters() const override { return true; }

  void split(Word text, WordSink next) const override {
    size_t begin = 0;
    int64_t count = 0;
    for (size_t at = 0; at < text.text.size();) {
      at += char_at(text.text, at).bytes;
      if (++count == length_ || at == text.text.size()) {
        next({text.text.substr(begin, at - begin), text.is_first && begin == 0});
        begin = at;
        count = 0;
      }
    }
  }

 private:
  int64_t length_;
};

// Spaces become a visible character (sentencepiece's U+2581), which begins words.
class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { always, first, never };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void split(Word text, WordSink next) const override {
    std::string replaced;
    replaced.reserve(text.text.size() + text.text.size() / 2 + replacement_.size());
    const bool begins = text.text.starts_with(' ') || text.text.starts_with(replacement_);
    if (!begins && (prepend_ == Prepend::always || (prepend_ == Prepend::first && text.is_first))) {
      replaced = replacement_;
    }
    for (size_t at = 0; at < text.text.size();) {
      const size_t space = std::min(text.text.find(' ', at), text.text.size());
      replaced += text.text.substr(at, space - at);
      replaced += space < text.text.size() ? replacement_ : std::string();
      at = space + 1;
    }
    if (!split_) {
      return next({replaced, text.is_first});
    }
    const std::string_view all = replaced;
    size_t begin = 0;
    while (begin < all.size()) {
      const size_t end = std::min(
          all.find(replacement_, begin == 0 && !all.starts_with(replacement_) ? 0 : begin + replacement_.size()),
          all.size());
      next({all.substr(begin, end - begin), text.is_first && begin == 0});
      begin = end;
    }
  }

  // Before a space that follows something else. Only in text without U+2581 itself.
  Cut next_cut(std::string_view text, size_t begin) const override {
    if (!split_ || (begin == 0 && text.find(replacement_) != std::string_view::npos)) {
      return {};
    }
    const size_t word = std::min(text.find_first_not_of(' ', begin), text.size());
    return {std::min(text.find(' ', word), text.size())};
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

// GPT-2's: a space before the text, its split pattern, bytes as characters.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space),
        use_regex_(use_regex),
        words_(Expression(kGpt2Expression, "GPT-2"), Behavior::isolated, false) {}

  void turn_bytes_into_chars(bool on) { byte_chars_ = on; }
  bool changes_nothing() const { return !add_prefix_space_ && !use_regex_ && !byte_chars_; }

  void split(Word text, WordSink next) const override {
    std::string with_space;
    if (add_prefix_space_ && !text.text.starts_with(' ')) {
      with_space.reserve(text.text.size() + 1);
      with_space = ' ';
      text.text = with_space += text.text;
    }
    if (!byte_chars_) {
      return use_regex_ ? words_.split(text, next) : next(text);
    }
    std::string chars;
    const auto turned = [&](Word word) {
      chars.clear();
      append_byte_chars(chars, word.text);
      next({chars, word.is_first});
    };
    use_regex_ ? words_.split(text, turned) : turned(text);
  }

  Cut next_cut(std::string_view text, size_t begin) const override {
    return use_regex_ && !add_prefix_space_ && !byte_chars_ ? words_.next_cut(text, begin) : Cut{};
  }

 private:
  bool add_prefix_space_;
  bool use_regex_;
  bool byte_chars_ = true;
  SplitByExpression words_;
};

// Names are written in two ways: "MergedWithNext" in files, "merged_with_next" in Python.
Behavior read_behavior(ObjectReader& reader, const char* default_value) {
  static constexpr std::pair<const char*, Behavior> kBehaviors[] = {
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous}};
  std::vector<std::string> names;
  for (const auto& [name, behavior] : kBehaviors) {
    names.emplace_back(name);
  }
  const std::string name = reader.word("behavior", default_value, names);
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) {
      return behavior;
    }
  }
  fail_at(reader.node().where(), "\"behavior\" is missing");
}

std::unique_ptr<PreTokenizer> read_metaspace(ObjectReader& reader) {
  const std::string replacement = reader.get<std::string>("replacement", "\xe2\x96\x81");
  if (replacement.empty() || char_at(replacement, 0).bytes != replacement.size()) {
    fail_at(reader.node().where(), concat("\"replacement\" must be one character, got \"", replacement, '"'));
  }
  std::string scheme = reader.word("prepend_scheme", "always", {"always", "first", "never"});
  if (!reader.get("add_prefix_space", true)) { // of files before prepend_scheme
    if (reader.find("prepend_scheme") != nullptr && scheme != "never") {
      fail_at(reader.node().where(), "\"add_prefix_space\": false contradicts \"prepend_scheme\"",
              "Remove \"add_prefix_space\".");
    }
    scheme = "never";
  }
  reader.find("str_rep"); // of old files; the same as the replacement
  const auto prepend = scheme == "always"  ? Metaspace::Prepend::always
                       : scheme == "first" ? Metaspace::Prepend::first
                                           : Metaspace::Prepend::never;
  return std::make_unique<Metaspace>(replacement, prepend, reader.get("split", true));
}

std::unique_ptr<PreTokenizer> read_one(const std::string& type, ObjectReader& reader) {
  if (type == "Split") {
    Expression pattern = read_pattern(reader);
    const Behavior behavior = read_behavior(reader, "");
    return std::make_unique<SplitByExpression>(std::move(pattern), behavior, reader.get("invert", false));
  }
  if (type == "Digits") {
    return by_char(is_number, reader.get("individual_digits", false) ? Behavior::isolated : Behavior::contiguous);
  }
  if (type == "Punctuation") {
    return by_char(is_punctuation, read_behavior(reader, "Isolated"));
  }
  if (type == "WhitespaceSplit") {
    return by_char(is_space, Behavior::removed);
  }
  if (type == "CharDelimiterSplit") {
    const std::string delimiter = reader.require_as<std::string>("delimiter");
    if (delimiter.empty() || char_at(delimiter, 0).bytes != delimiter.size()) {
      fail_at(reader.node().where(), concat("\"delimiter\" must be one character, got \"", delimiter, '"'));
    }
    return by_char([code = char_at(delimiter, 0).code](char32_t c) { return c == code; }, Behavior::removed);
  }
  if (type == "Whitespace") {
    return std::make_unique<Whitespace>();
  }
  if (type == "FixedLength") {
    const int64_t length = reader.get<int64_t>("length", 5);
    if (length < 1) {
      fail_at(reader.node().where(), concat("\"length\" must be a whole number >= 1, got ", length));
    }
    return std::make_unique<FixedLength>(length);
  }
  if (type == "Metaspace") {
    return read_metaspace(reader);
  }
  refuse_type(reader.node(), "pre-tokenizer", type,
              type == "UnicodeScripts"
                  ? "Write a Split with an expression of scripts such as \\p{Han}."
                  : "Supported: Sequence, BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, "
                    "Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit.");
}

} // namespace

PreTokenizer::Cut PreTokenizer::next_cut(std::string_view, size_t) const {
  return {};
}

PreTokenizers read_pre_tokenizers(const JsonNode& node) {
  PreTokenizers made;
  ByteLevel* last = nullptr;
  for_each_part(node, "pretokenizers", [&](const std::string& type, ObjectReader& reader) {
    last = nullptr;
    if (type == "BertPreTokenizer") {
      made.steps.push_back(by_char(is_space, Behavior::removed));
      made.steps.push_back(by_char(is_punctuation, Behavior::isolated));
    } else if (type == "ByteLevel") {
      const bool space = reader.require_as<bool>("add_prefix_space");
      auto step = std::make_unique<ByteLevel>(space, reader.get("use_regex", true));
      reader.find("trim_offsets"); // of offsets alone
      last = step.get();
      made.steps.push_back(std::move(step));
    } else {
      made.steps.push_back(read_one(type, reader));
    }
  });
  if (last != nullptr) {
    last->turn_bytes_into_chars(false);
    made.byte_chars = true;
    if (last->changes_nothing()) {
      made.steps.pop_back();
    }
  }
  return made;
}

} // namespace trireme::tokenizer
