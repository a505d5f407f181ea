#pragma once

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/config/expressions.h>
#include <trireme/config/key_table.h>

#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::config {

/// Types that a program has registered, by the path of their section.
using ProgramTypes = std::map<std::string, std::vector<std::string>, std::less<>>;

/// Checks the object `node` against the section of `path` and those below it: every key is known, every
/// value has its type and range, and every value is supported.
///
/// `type` selects the section where its keys depend on a `type`. Appends a sentence to `notes`
/// for each value that has no effect. Errors: InputError at the first value that is wrong.
///
/// Sections whose `type` is one of `of_program` are left to the program that has registered it.
void check_keys(const JsonNode& node, std::string_view path, std::string_view type, std::vector<std::string>& notes,
                const ProgramTypes& of_program = {});

/// Removes from every disabled section of an engine's configuration ("enabled": false, "device": "none")
/// the keys that check_keys() would refuse, with a sentence in `notes` for each.
void forgive_what_is_off(JsonNode& engine, std::vector<std::string>& notes);

/// The table's spelling of a name: "adamw" gives "AdamW". `path` is that of a "choice".
std::string canonical_choice(std::string_view path, std::string_view name);

/// Reads values of one object after check_keys(). If the object is absent, every value is.
class Values {
 public:
  Values(const JsonNode* node, std::string_view path, std::string_view type = "");

  template <typename T>
  T get(const std::string& key, const T& default_value) const {
    const JsonNode* found = find(key);
    return found == nullptr ? default_value : convert(found, default_value);
  }
  template <typename T>
  std::optional<T> maybe(const std::string& key) const {
    const JsonNode* found = find(key);
    return found == nullptr ? std::nullopt : std::optional<T>(convert(found, T{}));
  }
  /// Regular expressions (ECMAScript); none where the key is absent. Errors: InputError with the place, for invalid
  /// ones.
  std::vector<std::string> patterns(const std::string& key) const;
  /// The same, each with its place.
  std::vector<Expression> expressions(const std::string& key) const;
  /// The value's node; nullptr when it is absent or null. std::logic_error when the table has no such key.
  const JsonNode* find(const std::string& key) const;

  /// The object below this key.
  Values section(const std::string& key, std::string_view type = "") const;

  bool present() const { return node_ != nullptr; }
  /// The object itself; only when present().
  const JsonNode& node() const { return *node_; }

 private:
  static bool convert(const JsonNode* node, bool) { return node->as_bool(); }
  static int64_t convert(const JsonNode* node, int64_t) { return node->as_integer(); }
  static double convert(const JsonNode* node, double) { return node->as_real(); }
  static std::string convert(const JsonNode* node, const std::string&) { return node->as_string(); }
  /// A string alone is a list of one.
  static std::vector<std::string> convert(const JsonNode* node, const std::vector<std::string>&);
  static std::vector<double> convert(const JsonNode* node, const std::vector<double>&);

  const JsonNode* node_ = nullptr;
  std::string path_;
  const Section* section_ = nullptr;
};

} // namespace trireme::config
