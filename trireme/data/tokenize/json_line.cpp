#include <trireme/data/tokenize/json_line.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr size_t kMostDepth = 100;
constexpr const char* kOtherKey = "; --text-key of \"trireme data tokenize\" names another key.";

// A key that is looked for at the top of the object.
struct Wanted {
  std::string name;
  bool is_text = true;
  bool found = false;
  std::string text{};
  std::string wrong{}; ///< its type, if it is no text
};

// Receives the parts of a value as nlohmann's parser finds them; false ends the parsing.
class KeyFinder final : public json::json_sax_t {
 public:
  explicit KeyFinder(std::span<Wanted> wanted) : wanted_(wanted) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool string(string_t& value) override {
    if (next_ != nullptr && next_->is_text) {
      std::exchange(next_, nullptr)->text = std::move(value);
      return true;
    }
    return other("a text");
  }
  bool start_object(std::size_t) override { return (depth_ == 0 || other("an object")) && deeper(); }
  bool start_array(std::size_t) override { return other("a list") && deeper(); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ != 1) {
      return true;
    }
    const auto found = std::ranges::find(wanted_, name, &Wanted::name);
    if (found == wanted_.end()) {
      return true;
    }
    next_ = &*found;
    return !std::exchange(found->found, true) || fail(concat("the key \"", printable(name), "\" appears twice"));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view what = error.what();
    if (what.find("ill-formed UTF-8") != std::string_view::npos) {
      return fail(concat("invalid UTF-8 at column ", position));
    }
    const size_t detail = what.find(": ", what.find("column"));
    return fail(concat("this is not valid JSON at column ", position,
                       detail == std::string_view::npos ? "" : printable(what.substr(detail, 120))));
  }

  const std::string& failure() const { return failure_; }

 private:
  // A value that is not a text.
  bool other(const char* what) {
    if (next_ != nullptr) {
      std::exchange(next_, nullptr)->wrong = what;
      return true;
    }
    return depth_ > 0 || fail(concat("a line must be an object, this is ", what));
  }
  bool deeper() { return ++depth_ <= kMostDepth || fail(concat("it nests deeper than ", kMostDepth)); }
  bool fail(std::string why) {
    failure_ = std::move(why);
    return false;
  }

  std::span<Wanted> wanted_;
  size_t depth_ = 0;
  Wanted* next_ = nullptr; // whose value is next
  std::string failure_;
};

// What is said of a line that cannot be used.
class LineRefusal {
 public:
  LineRefusal(const JsonLineOptions& options, const std::string& where) : options_(options), where_(where) {}

  [[noreturn]] void operator()(const std::string& why) const {
    const std::string text = concat("{\"", printable(options_.text_key), "\": \"...\"}");
    const std::string prompt = R"({"prompt": "...", "response": "..."})";
    const std::string messages = R"({"messages": [{"role": "user", "content": "..."}, ...]})";
    std::string next = "Each line must be an object such as ";
    switch (options_.fields) {
      case LineFields::any:
        next += concat(text, ", ", prompt, " or ", messages, kOtherKey);
        break;
      case LineFields::text:
        next += concat(text, kOtherKey);
        break;
      case LineFields::prompt:
        next += concat(prompt, '.');
        break;
      case LineFields::messages:
        next += concat(messages, '.');
        break;
    }
    throw InputError("data", concat(where_, ": ", why), next);
  }
  void missing(const std::string& key) const { (*this)(concat("the key \"", printable(key), "\" is missing")); }

 private:
  const JsonLineOptions& options_;
  const std::string& where_;
};

std::string take_text(Wanted& wanted, const LineRefusal& refuse) {
  if (!wanted.found) {
    refuse.missing(wanted.name);
  }
  if (!wanted.wrong.empty()) {
    refuse(concat("\"", printable(wanted.name), "\" is ", wanted.wrong, ", not a text"));
  }
  return std::move(wanted.text);
}

LineFields fields_of(const JsonLineOptions& options, const Wanted& text, const Wanted& prompt, const Wanted& response,
                     const Wanted& messages, const std::string& where) {
  if (options.fields != LineFields::any) {
    return options.fields;
  }
  const bool has_prompt = prompt.found && response.found;
  if (text.found + has_prompt + messages.found > 1) {
    throw InputError(
        "data",
        concat(where, ": the line has the keys \"", printable(text.found ? text.name : std::string("prompt")),
               "\" and \"", messages.found ? "messages" : "prompt", "\""),
        "Leave one of them out; --fields of \"trireme data tokenize\" says which to read.");
  }
  if (messages.found) {
    return LineFields::messages;
  }
  return !text.found && (prompt.found || response.found) ? LineFields::prompt : LineFields::text;
}

} // namespace

JsonLine read_json_line(std::string_view line, const JsonLineOptions& options, const std::string& where) {
  const LineRefusal refuse(options, where);
  std::array<Wanted, 5> wanted = {Wanted{options.text_key}, Wanted{"prompt"}, Wanted{"response"},
                                  Wanted{"messages", false}, Wanted{"tools", false}};
  auto& [text, prompt, response, messages, tools] = wanted;
  const bool only_text = options.fields == LineFields::text;
  KeyFinder finder({wanted.data(), only_text ? 1 : wanted.size()});
  if (!json::sax_parse(line.begin(), line.end(), &finder)) {
    refuse(finder.failure());
  }
  JsonLine read;
  read.fields = fields_of(options, text, prompt, response, messages, where);
  switch (read.fields) {
    case LineFields::any:
    case LineFields::text:
      read.text = take_text(text, refuse);
      break;
    case LineFields::prompt: {
      read.text = take_text(prompt, refuse);
      read.response_begin = read.text.size();
      read.text += take_text(response, refuse);
      break;
    }
    case LineFields::messages: {
      if (!messages.found) {
        refuse.missing(messages.name);
      }
      auto root = nlohmann::ordered_json::parse(line); // known to be valid, and not deep
      read.messages = std::move(root["messages"]);
      if (!read.messages.is_array() || read.messages.empty()) {
        refuse("\"messages\" must be a list of at least one message");
      }
      if (tools.found) {
        read.tools = std::move(root["tools"]);
      }
      break;
    }
  }
  return read;
}

} // namespace trireme::data
