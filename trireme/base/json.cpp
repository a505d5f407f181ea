#include <trireme/base/json.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/plain_text.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <unordered_set>

namespace trireme {
namespace {

constexpr size_t kMaxDepth = 100;

// nlohmann's SAX interface gives no positions. Its lexer reads the input strictly forward through iterators, so a
// counting iterator knows them.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    *furthest_ = std::max(*furthest_, at_);
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

const char* kind_name(JsonNode::Kind kind) {
  switch (kind) {
    case JsonNode::Kind::null:
      return "null";
    case JsonNode::Kind::boolean:
      return "true or false";
    case JsonNode::Kind::integer:
      return "a whole number";
    case JsonNode::Kind::real:
      return "a number";
    case JsonNode::Kind::string:
      return "a string";
    case JsonNode::Kind::array:
      return "an array";
    case JsonNode::Kind::object:
      return "an object";
  }
  return "?";
}

// Of an element, from its name in a path.
size_t index_in(size_t size, const std::string& key, const std::string& what) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc() || end != key.data() + key.size() || index >= size) {
    throw InputError("config", concat(what, " is an array of ", size, " elements and has no \"", printable(key), '"'),
                     "Number its elements from 0: a.0.b=value.");
  }
  return index;
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::string child_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

} // namespace

// Builds the tree from nlohmann's SAX events.
class JsonBuilder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  JsonBuilder(std::string_view text, const std::string& source)
      : text_(text), source_(source), furthest_(text.data()) {}

  JsonNode build() {
    if (const size_t nul = text_.find('\0'); nul != std::string_view::npos) { // nlohmann would end the text there
      fail_at(nul, "this is not JSON: it contains a NUL byte", "Remove it and all that follows.");
    }
    const CountingIterator begin(text_.data(), &furthest_);
    const CountingIterator end(text_.data() + text_.size(), &furthest_);
    nlohmann::json::sax_parse(begin, end, this, nlohmann::json::input_format_t::json, true, true);
    return std::move(root_);
  }

  bool null() { return scalar(JsonNode::Kind::null, nullptr); }
  bool boolean(bool value) { return scalar(JsonNode::Kind::boolean, value); }
  bool number_integer(number_integer_t value) { return scalar(JsonNode::Kind::integer, value); }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) {
      fail_at(token_start(false), concat("the number ", value, " is too large"));
    }
    return scalar(JsonNode::Kind::integer, static_cast<number_integer_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) { return scalar(JsonNode::Kind::real, value); }
  bool string(string_t& value) { return scalar(JsonNode::Kind::string, value); }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) {
    open(JsonNode::Kind::object);
    return true;
  }
  bool start_array(size_t) {
    open(JsonNode::Kind::array);
    return true;
  }
  bool end_object() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }
  bool end_array() { return end_object(); }
  bool key(string_t& name) {
    if (!names_.back().insert(name).second) {
      fail_at(
          token_start(true),
          concat("the key \"", name, "\" appears twice in one object, first at ", open_.back()->find(name)->where()),
          "Keep one of them.");
    }
    key_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string& token, const nlohmann::json::exception& error) {
    const size_t end = offset();
    // nlohmann's text ends with the reason: "...; expected ',' or '}'".
    std::string reason = error.what();
    const size_t colon = reason.find(": ");
    reason = colon == std::string::npos ? reason : reason.substr(colon + 2);
    const size_t dash = reason.find(" - ");
    const size_t semicolon = reason.rfind("; last read");
    std::string expected;
    if (const size_t at = reason.rfind("; expected "); at != std::string::npos) {
      expected = reason.substr(at + 2);
    } else if (dash != std::string::npos) {
      expected = reason.substr(dash + 3, semicolon == std::string::npos ? std::string::npos : semicolon - dash - 3);
    }
    const bool at_end = end >= text_.size() && (token.empty() || reason.find("end of input") != std::string::npos);
    fail_at(end == 0 ? 0 : end - 1,
            concat("this is not JSON: ",
                   at_end ? "the text ends too early" : concat("unexpected \"", printable(token), '"'),
                   expected.empty() ? "" : concat(" (", expected, ")")),
            "Look for a missing quote, or a comma too many or too few.");
    return false;
  }

 private:
  static std::string printable(const std::string& token) {
    std::string out;
    for (unsigned char c : token.substr(token.size() > 40 ? token.size() - 40 : 0)) {
      out += c < 0x20 || c >= 0x7f ? '?' : static_cast<char>(c);
    }
    return out;
  }

  size_t offset() const { return static_cast<size_t>(furthest_ - text_.data()); }

  // Offset of the first character of the token whose last character was read just now.
  size_t token_start(bool is_string) const {
    size_t end = std::min(offset(), text_.size());
    if (is_string) {
      size_t quote = text_.rfind('"', end == 0 ? 0 : end - 1);
      while (quote != std::string_view::npos && quote > 0) {
        const size_t before = text_.rfind('"', quote - 1);
        if (before == std::string_view::npos) {
          return quote;
        }
        size_t slashes = 0;
        while (slashes < before && text_[before - 1 - slashes] == '\\') {
          ++slashes;
        }
        if (slashes % 2 == 0) {
          return before;
        }
        quote = before;
      }
      return quote == std::string_view::npos ? 0 : quote;
    }
    const auto ends_token = [](char c) { return std::string_view(" \t\r\n,:[]{}/").find(c) != std::string_view::npos; };
    while (end > 0 && ends_token(text_[end - 1])) {
      --end; // a number ends only when the next character has been read
    }
    while (end > 0 && !ends_token(text_[end - 1])) {
      --end;
    }
    return end;
  }

  // Positions increase from call to call, so lines are counted once: files may have 100,000 values.
  std::string position(size_t at) {
    at = std::min(at, text_.size());
    if (at < counted_) {
      counted_ = line_start_ = 0;
      line_ = 1;
    }
    for (; counted_ < at; ++counted_) {
      if (text_[counted_] == '\n') {
        ++line_;
        line_start_ = counted_ + 1;
      }
    }
    return source_ + ':' + std::to_string(line_) + ':' + std::to_string(at - line_start_ + 1);
  }

  [[noreturn]] void fail_at(size_t at, const std::string& happened, const std::string& next = "") {
    throw InputError("json", concat(position(at), ": ", happened), next);
  }

  JsonNode& add(size_t at) {
    if (open_.size() > kMaxDepth) {
      fail_at(at, concat("nested deeper than ", kMaxDepth, " levels"));
    }
    JsonNode* node = &root_;
    std::string path;
    if (!open_.empty()) {
      JsonNode& parent = *open_.back();
      if (parent.kind_ == JsonNode::Kind::object) {
        path = child_path(parent.path_, key_);
        node = &parent.members_.emplace_back(key_, JsonNode()).second;
      } else {
        path = parent.path_ + '[' + std::to_string(parent.elements_.size()) + ']';
        node = &parent.elements_.emplace_back();
      }
    }
    node->path_ = path;
    node->where_ = position(at);
    return *node;
  }

  bool scalar(JsonNode::Kind kind, nlohmann::json value) {
    JsonNode& node = add(token_start(kind == JsonNode::Kind::string));
    node.kind_ = kind;
    node.scalar_ = std::move(value);
    return true;
  }

  void open(JsonNode::Kind kind) {
    JsonNode& node = add(offset() == 0 ? 0 : offset() - 1);
    node.kind_ = kind;
    open_.push_back(&node);
    names_.emplace_back();
  }

  std::string_view text_;
  std::string source_;
  const char* furthest_;
  std::string key_;
  JsonNode root_;
  // Pointers stay valid: a parent gets no new member while a child is open.
  std::vector<JsonNode*> open_;
  // The keys of each open object: JsonNode::find is a linear search.
  std::vector<std::unordered_set<std::string>> names_;
  // Lines that position() has counted so far.
  size_t counted_ = 0;
  size_t line_ = 1;
  size_t line_start_ = 0;
};

JsonNode JsonNode::parse(std::string_view text, const std::string& source) {
  return JsonBuilder(text, source).build();
}

JsonNode JsonNode::parse_file(const std::filesystem::path& file) {
  return parse(plain_text("json", file.string(), read_file(file)), file.string());
}

void JsonNode::fail(const std::string& happened, const std::string& next) const {
  const bool is_named = path_.empty() || where_ == concat("--set ", path_);
  throw InputError("config", concat(where_, ": ", is_named ? "" : path_ + ": ", happened), next);
}

void JsonNode::expect(Kind kind) const {
  if (kind_ != kind) {
    fail(concat("must be ", kind_name(kind), ", found ", kind_name(kind_),
                kind_ == Kind::string ? concat(" (", scalar_.dump(), ")") : ""));
  }
}

const std::vector<JsonNode::Member>& JsonNode::members() const {
  expect(Kind::object);
  return members_;
}

const std::vector<JsonNode>& JsonNode::elements() const {
  expect(Kind::array);
  return elements_;
}

const JsonNode* JsonNode::find(std::string_view key) const {
  for (const Member& member : members()) {
    if (member.first == key) {
      return &member.second;
    }
  }
  return nullptr;
}

bool JsonNode::as_bool() const {
  expect(Kind::boolean);
  return scalar_.get<bool>();
}

int64_t JsonNode::as_integer() const {
  if (kind_ == Kind::real) {
    const double value = scalar_.get<double>();
    if (std::floor(value) == value && std::abs(value) < 9e15) {
      return static_cast<int64_t>(value);
    }
  }
  expect(Kind::integer);
  return scalar_.get<int64_t>();
}

double JsonNode::as_real() const {
  if (kind_ == Kind::integer) {
    return static_cast<double>(scalar_.get<int64_t>());
  }
  expect(Kind::real);
  return scalar_.get<double>();
}

const std::string& JsonNode::as_string() const {
  expect(Kind::string);
  return scalar_.get_ref<const std::string&>();
}

nlohmann::ordered_json JsonNode::plain() const {
  if (kind_ == Kind::object) {
    auto out = nlohmann::ordered_json::object();
    for (const Member& member : members_) {
      out[member.first] = member.second.plain();
    }
    return out;
  }
  if (kind_ == Kind::array) {
    auto out = nlohmann::ordered_json::array();
    for (const JsonNode& element : elements_) {
      out.push_back(element.plain());
    }
    return out;
  }
  return scalar_;
}

void JsonNode::place(const std::string& path, const std::string& where) {
  path_ = path;
  where_ = where;
  for (Member& member : members_) {
    member.second.place(child_path(path, member.first), where);
  }
  for (size_t i = 0; i < elements_.size(); ++i) {
    elements_[i].place(concat(path, '[', i, ']'), where);
  }
}

void JsonNode::set(std::string_view dotted_path, const std::string& text) {
  const std::string where = concat("--set ", dotted_path);
  if (!is_utf8(dotted_path) || !is_utf8(text)) { // as for files
    throw InputError("config", concat(where, ": the path or the value is not UTF-8"),
                     "Type it in a terminal whose locale is UTF-8.");
  }
  JsonNode* node = this;
  std::string path;
  for (const std::string& key : split(dotted_path, '.')) {
    if (key.empty()) {
      throw InputError("config", concat(where, ": the path has an empty part"), "Write it as a.b.c=value.");
    }
    if (node->kind_ == Kind::array) {
      const size_t index = index_in(node->elements_.size(), key, concat(where, ": ", path));
      path += concat('[', index, ']');
      node = &node->elements_[index];
      continue;
    }
    if (node->kind_ != Kind::object) {
      throw InputError("config", concat(where, ": ", path, " is ", kind_name(node->kind_), " and has no keys"));
    }
    path = child_path(path, key);
    const auto found =
        std::find_if(node->members_.begin(), node->members_.end(), [&](const Member& m) { return m.first == key; });
    if (found != node->members_.end()) {
      node = &found->second;
      continue;
    }
    JsonNode created;
    created.kind_ = Kind::object;
    created.place(path, where);
    node = &node->members_.emplace_back(key, std::move(created)).second;
  }
  JsonNode value;
  if (nlohmann::json::accept(text)) {
    value = parse(text, where);
  } else {
    value.kind_ = Kind::string;
    value.scalar_ = text;
  }
  value.place(path, where);
  *node = std::move(value);
}

JsonNode* JsonNode::at(std::string_view dotted_path) {
  JsonNode* node = this;
  for (const std::string& key : split(dotted_path, '.')) {
    if (node->kind_ != Kind::object) {
      return nullptr;
    }
    const auto found =
        std::find_if(node->members_.begin(), node->members_.end(), [&](const Member& m) { return m.first == key; });
    if (found == node->members_.end()) {
      return nullptr;
    }
    node = &found->second;
  }
  return node;
}

void JsonNode::replace(std::string_view text) {
  JsonNode value = parse(text, where_);
  value.place(path_, where_);
  *this = std::move(value);
}

void JsonNode::erase(std::string_view key) {
  std::erase_if(members_, [&](const Member& member) { return member.first == key; });
}

} // namespace trireme
