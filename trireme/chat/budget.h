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

/// Limits what one rendering may use, so that a template from elsewhere neither hangs nor fills the memory. A step is
/// an evaluated expression or a list's element, kStepsOfObject are a new text or another object in a list or a dict,
/// and 16 bytes of a text that is made, copied or searched are one step. All work on texts and lists is linear, so that
/// a step takes about 0.1 us and some 25 bytes at most.
class Budget {
 public:
  /// Of a list.
  static constexpr size_t kMostElements = 1'000'000;
  static constexpr uint64_t kStepsOfObject = 8;

  Budget(size_t max_bytes, uint64_t max_steps) : max_bytes_(max_bytes), steps_left_(max_steps) {}

  /// Errors: TemplateError once more than max_steps were spent.
  void spend(uint64_t steps = 1) {
    if (steps > steps_left_) {
      throw TemplateError("the template needs too many steps");
    }
    steps_left_ -= steps;
  }

  /// Spends for a pass over a text of `bytes`.
  void spend_pass(size_t bytes) { spend(bytes / 16); }

  /// Spends for a list of `count` elements, before it is made. Errors: TemplateError above kMostElements.
  void spend_elements(size_t count, uint64_t steps_each = 1) {
    if (count > kMostElements) {
      throw TemplateError("the template makes a list of more than 1,000,000 elements");
    }
    spend(count * steps_each);
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
