#pragma once

#include <trireme/chat/parser.h>

namespace trireme::chat {

/// Counts how deep the parser is, so that a template cannot use up the stack.
class Parser::Level {
 public:
  explicit Level(Parser& parser) : parser_(parser) {
    constexpr int kMostLevels = 200;
    if (++parser_.level_ > kMostLevels) {
      --parser_.level_;
      parser_.fail("tags and brackets lie too deep inside of each other", "At most 200 levels are supported.");
    }
  }
  ~Level() { --parser_.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Parser& parser_;
};

} // namespace trireme::chat
