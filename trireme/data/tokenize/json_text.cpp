#include <trireme/data/tokenize/json_text.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <optional>

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr size_t kMostDepth = 100;

// Receives the parts of a value as nlohmann's parser finds them; false ends the parsing.
class TextFinder final : public json::json_sax_t {
 public:
  explicit TextFinder(const std::string& key) : key_(key) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool string(string_t& value) override {
    if (wanted_) {
      wanted_ = false;
      text_ = std::move(value);
      return true;
    }
    return other("a text");
  }
  bool start_object(std::size_t) override { return (depth_ == 0 || other("an object")) && deeper(); }
  bool start_array(std::size_t) override { return other("a list") && deeper(); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ != 1 || name != key_) {
      return true;
    }
    wanted_ = true;
    return !text_ || fail(concat("the key \"", printable(key_), "\" appears twice"));
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
  std::optional<std::string>& text() { return text_; }

 private:
  // A value that is not a text at the key.
  bool other(const char* what) {
    if (wanted_) {
      return fail(concat("\"", printable(key_), "\" is ", what, ", not a text"));
    }
    return depth_ > 0 || fail(concat("a line must be an object, this is ", what));
  }
  bool deeper() { return ++depth_ <= kMostDepth || fail(concat("it nests deeper than ", kMostDepth)); }
  bool fail(std::string why) {
    failure_ = std::move(why);
    return false;
  }

  const std::string& key_;
  size_t depth_ = 0;
  bool wanted_ = false; // the next value is the one
  std::optional<std::string> text_;
  std::string failure_;
};

} // namespace

std::string text_of_json(std::string_view line, const std::string& key, const std::string& where) {
  TextFinder finder(key);
  const bool whole = json::sax_parse(line.begin(), line.end(), &finder);
  if (!whole || !finder.text()) {
    throw InputError(
        "data",
        concat(where, ": ",
               finder.failure().empty() ? concat("the key \"", printable(key), "\" is missing") : finder.failure()),
        concat("Each line must be an object such as {\"", printable(key),
               "\": \"...\"}; --text-key names another key."));
  }
  return std::move(*finder.text());
}

} // namespace trireme::data
