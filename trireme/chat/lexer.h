#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::chat {

struct Token {
  enum class Type {
    text,
    print_begin, ///< {{
    print_end,
    block_begin, ///< {%
    block_end,
    name,
    string,
    integer,
    real,
    sign, ///< an operator or a bracket
    end,
  };
  Type type = Type::end;
  int line = 1;
  std::string text = {}; ///< of a string: its content
  int64_t integer = 0;
  double real = 0;
};

/// Splits a template into tokens as Jinja does with trim_blocks and lstrip_blocks: a line end behind a block or a
/// comment goes, spaces before one at the begin of a line too, and "-" strips more. Comments are left out. The last
/// token is `end`. Errors: InputError with `source` and line.
std::vector<Token> tokenize(std::string_view text, const std::string& source);

/// Throws InputError("chat", "SOURCE:LINE: what", next).
[[noreturn]] void fail_at(const std::string& source, int line, const std::string& what, const std::string& next = "");

} // namespace trireme::chat
