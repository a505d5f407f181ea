#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// JSON with the position of each value, so that an error can say
/// "run.json:3:14: engine.zero_optimization.stage: ...".
///
/// Accepts // and /* */ comments as in DeepSpeed's files. Refuses duplicate
/// keys, text after the end, NUL bytes, nesting deeper than 100 and invalid UTF-8.
/// Errors: InputError with line and column.
class JsonNode {
 public:
  enum class Kind { null, boolean, integer, real, string, array, object };
  using Member = std::pair<std::string, JsonNode>;

  static JsonNode parse(std::string_view text, const std::string& source);
  static JsonNode parse_file(const std::filesystem::path& file);

  Kind kind() const { return kind_; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_null() const { return kind_ == Kind::null; }
  /// Dotted path from the top, "" for the top itself: "engine.optimizer.params.betas[1]".
  const std::string& path() const { return path_; }
  /// "run.json:3:14", or "--set engine.steps" for a value from the command line.
  const std::string& where() const { return where_; }

  /// Members in the order of the file. Fails when this is not an object.
  const std::vector<Member>& members() const;
  /// Elements of the array. Fails when this is not an array.
  const std::vector<JsonNode>& elements() const;
  /// The member's value, or nullptr.
  const JsonNode* find(std::string_view key) const;

  bool as_bool() const;
  /// A whole number; 5e8 counts as one.
  int64_t as_integer() const;
  double as_real() const;
  const std::string& as_string() const;

  /// The value without positions, to be stored or passed on.
  nlohmann::ordered_json plain() const;

  /// Sets a value by dotted path ("engine.optimizer.params.lr") and creates missing objects. `text`
  /// is JSON; other text becomes a string. Elements of an array are numbered: "data.sets.0.weight".
  /// Errors: InputError when a value on the path has no keys, or an array no such element.
  void set(std::string_view dotted_path, const std::string& text);

  /// The value at a dotted path below this one; nullptr if there is none.
  JsonNode* at(std::string_view dotted_path);
  /// Replaces the value by the JSON `text` and keeps its position for errors.
  void replace(std::string_view text);
  /// Removes a member, if there is one.
  void erase(std::string_view key);

  /// Throws InputError("config", "<where>: <path>: happened", next).
  [[noreturn]] void fail(const std::string& happened, const std::string& next = "") const;

 private:
  friend class JsonBuilder;
  void expect(Kind kind) const;
  void place(const std::string& path, const std::string& where);

  Kind kind_ = Kind::null;
  nlohmann::json scalar_;
  std::vector<Member> members_;
  std::vector<JsonNode> elements_;
  std::string path_;
  std::string where_;
};

/// Reads an object key by key and then refuses all other keys.
///
///   ObjectReader reader(node);
///   options.lr = reader.get("lr", options.lr);
///   reader.finish();   // "betaz" is unknown. Did you mean "betas"?
///
/// "x_..." and "_comment..." keys are notes and allowed anywhere, "$schema" too.
class ObjectReader {
 public:
  explicit ObjectReader(const JsonNode& node);

  const JsonNode& node() const { return node_; }
  /// The member's node or nullptr; from now on the key is known.
  const JsonNode* find(const std::string& key);
  /// The member's node; fails naming the missing key.
  const JsonNode& require(const std::string& key);

  /// T is bool, int64_t, double, std::string or a std::vector of one of these.
  /// Returns `default_value` for a missing key and for null.
  template <typename T>
  T get(const std::string& key, const T& default_value) {
    const JsonNode* found = find(key);
    return found == nullptr || found->is_null() ? default_value : convert<T>(*found);
  }
  template <typename T>
  std::optional<T> maybe(const std::string& key) {
    const JsonNode* found = find(key);
    return found == nullptr || found->is_null() ? std::nullopt : std::optional<T>(convert<T>(*found));
  }
  template <typename T>
  T require_as(const std::string& key) {
    return convert<T>(require(key));
  }
  /// One of the words, compared exactly; fails with "did you mean".
  std::string word(const std::string& key, const std::string& default_value, const std::vector<std::string>& allowed);

  /// Fails on the first key that no call above asked for.
  void finish() const;

  /// true for keys that are ignored: "x_...", "_comment..." and "$schema".
  static bool is_note(std::string_view key);

 private:
  template <typename T>
  static T convert(const JsonNode& node);

  const JsonNode& node_;
  std::vector<std::string> known_;
};

} // namespace trireme
