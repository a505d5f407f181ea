#pragma once

#include <trireme/chat/budget.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// The values of a template: those of Python that templates use. Text is valid UTF-8; its length and positions count
// code points. Values are shared, so a copy costs O(1), and nothing but a Namespace changes.
namespace trireme::chat {

struct Sequence;
class Mapping;
struct Namespace;
struct Loop;
struct Callable;

/// Lists and dicts inside of each other, at most.
inline constexpr int kMostNesting = 200;

class Value {
 public:
  /// In the order of `Data`.
  enum class Kind { undefined, none, boolean, integer, real, text, sequence, mapping, name_space, loop, callable };

  Value() : data_(std::monostate()) {} ///< None
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::shared_ptr<Sequence> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Mapping> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Loop> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Callable> value) : data_(std::move(value)) {}

  /// Jinja's Undefined: prints as nothing and is false; any other use throws `why`.
  static Value undefined(std::string why);
  static Value size(size_t count) { return static_cast<int64_t>(count); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_none() const { return is(Kind::none); }
  bool is_text() const { return is(Kind::text); }
  bool is_sequence() const { return is(Kind::sequence); }
  bool is_mapping() const { return is(Kind::mapping); }

  /// Each needs its kind.
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return std::get<int64_t>(data_); }
  double real() const { return std::get<double>(data_); }
  const std::string& text() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  Sequence& sequence() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
  const Mapping& mapping() const { return *std::get<std::shared_ptr<const Mapping>>(data_); }
  Namespace& name_space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const std::shared_ptr<Loop>& loop() const { return std::get<std::shared_ptr<Loop>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  /// Throws TemplateError with what an undefined value lacks. Does nothing for another value.
  void require_defined() const;
  /// Whether both are the same object, or the same None, True or False (Python's `is`).
  bool is_same(const Value& other) const;
  /// How deep lists and dicts lie inside of it.
  int nesting() const;

 private:
  struct Undefined {
    std::shared_ptr<const std::string> why;
  };
  using Data = std::variant<Undefined, std::monostate, bool, int64_t, double, std::shared_ptr<const std::string>,
                            std::shared_ptr<Sequence>, std::shared_ptr<const Mapping>, std::shared_ptr<Namespace>,
                            std::shared_ptr<Loop>, std::shared_ptr<const Callable>>;
  Data data_;
};

using Values = std::vector<Value>;

/// A list, a tuple, or what a filter such as map gives, which can be iterated over once.
struct Sequence {
  enum class Type { list, tuple, iterator };
  Type type = Type::list;
  Values elements;
  int nesting = 1;
  bool used = false; ///< of an iterator: it gives its elements once
};

/// A dict in the order of insertion. Cost of find(): O(1) for a text, O(n) for another key.
class Mapping {
 public:
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  int nesting() const { return nesting_; }
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key, Budget& budget) const;
  /// Errors: TemplateError for a key that is no text, number or None.
  void set(const Value& key, Value value, Budget& budget);

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string_view, size_t> by_text_; // into the keys, which are shared and stay
  int nesting_ = 1;
};

struct Namespace {
  Mapping attributes;
};

/// What `loop` is in a loop's body.
struct Loop {
  Values elements;
  size_t index = 0;
  int nesting = 1;
};

/// The arguments of a call.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A macro, a function, or a method with its object.
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int nesting = 1;
};

/// Errors: TemplateError for more than kMostNesting levels or Budget::kMostElements elements, here and in the next.
Value make_sequence(Sequence::Type type, Values elements, Budget& budget);
Value make_list(Values elements, Budget& budget);
Value make_mapping(Mapping mapping);
/// (key, value) tuples.
Values pairs_of(const Mapping& mapping, Budget& budget);

/// From JSON; text that is not UTF-8 becomes U+FFFD. Errors: TemplateError for numbers beyond 64 bits and for more
/// than kMostNesting levels.
Value from_json(const nlohmann::ordered_json& json, Budget& budget);

/// Python's name of its type: "str", "dict".
std::string type_name(const Value& value);

bool is_true(const Value& value);

/// What a loop goes through. Uses up an iterator. Errors: TemplateError for a value that cannot be iterated or is too
/// long.
Values elements_of(const Value& value, Budget& budget);
/// Python's len(). none: the value has no length. Cost: one pass over a text.
std::optional<size_t> size_of(const Value& value, Budget& budget);

/// A boolean, an integer or a real.
struct Number {
  bool is_real = false;
  int64_t integer = 0;
  double real = 0; ///< its value, also of an integer
};
std::optional<Number> number_of(const Value& value);

} // namespace trireme::chat
