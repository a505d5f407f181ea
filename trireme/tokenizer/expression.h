#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace trireme::tokenizer {

/// Bytes [begin, end) of a text.
struct Match {
  size_t begin;
  size_t end;
};

/// A regular expression over UTF-8 text, compiled to machine code where PCRE2 can. Const members are thread-safe.
class Expression {
 public:
  /// `expression` is in the syntax of Oniguruma (Ruby). `where` names it in messages. Errors: InputError with the
  /// reason and the position.
  Expression(std::string_view expression, const std::string& where);
  /// Matches `text` itself.
  static Expression literal(std::string text);

  /// Finds the first match that begins at byte `from` or later. Lookbehinds see the text before `from`. `text` is valid
  /// UTF-8. Errors: InputError if the match takes too many steps or too much memory.
  std::optional<Match> find(std::string_view text, size_t from) const;

  /// Whether PCRE2 knows this expression in its own syntax.
  static bool compiles(const std::string& pcre2_expression);

 private:
  Expression() = default;

  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool compiled_to_machine_code_ = false;
  std::string literal_;
  std::string where_;
};

/// Goes through the matches of a text, first to last, as Oniguruma's find_iter() does: an empty match directly behind
/// another match is left out.
class Matches {
 public:
  Matches(const Expression& expression, std::string_view text, size_t from = 0)
      : expression_(expression), text_(text), from_(from) {}

  std::optional<Match> next();

 private:
  const Expression& expression_;
  std::string_view text_;
  size_t from_;
  std::optional<size_t> last_end_;
};

} // namespace trireme::tokenizer
