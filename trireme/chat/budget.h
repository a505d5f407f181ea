#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme::chat {

/// An error of a template while it renders, without its place: the interpreter adds source and line.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A template uses what Trireme leaves out of Jinja.
class NotSupported : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

/// One level more while it lives, so that no template uses up the stack.
class Level {
 public:
  /// Errors: TemplateError(what) for more than `most` levels.
  Level(int& level, int most, const char* what) : level_(level) {
    if (level >= most) {
      throw TemplateError(what);
    }
    ++level;
  }
  ~Level() { --level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& level_;
};

/// Limits what one rendering may use, so that a template from elsewhere neither hangs nor fills the memory. An
/// evaluated expression and a new element each cost one step, and 16 bytes of new text one more.
class Budget {
 public:
  Budget(size_t max_bytes, uint64_t max_steps) : max_bytes_(max_bytes), steps_left_(max_steps) {}

  /// Errors: TemplateError once more than max_steps were spent.
  void spend(uint64_t steps = 1) {
    if (steps > steps_left_) {
      throw TemplateError("the template needs too many steps");
    }
    steps_left_ -= steps;
  }

  /// Spends for a text of `bytes`, before it is made. Errors: TemplateError above max_bytes.
  void spend_text(size_t bytes) {
    if (bytes > max_bytes_) {
      throw TemplateError("the template makes a text that is too long");
    }
    spend(bytes / 16);
  }

  /// Appends to a text that grows. Errors: TemplateError if it becomes longer than max_bytes.
  void append(std::string& text, std::string_view more) {
    if (text.size() + more.size() > max_bytes_) {
      throw TemplateError("the template makes a text that is too long");
    }
    spend(more.size() / 16);
    text += more;
  }

  /// Spends for a text of `count` times `bytes`.
  void spend_text(size_t count, size_t bytes) {
    if (bytes > 0 && count > max_bytes_ / bytes) {
      throw TemplateError("the template makes a text that is too long");
    }
    spend_text(count * bytes);
  }

 private:
  size_t max_bytes_;
  uint64_t steps_left_;
};

} // namespace trireme::chat
