#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

/// How a key is treated.
///
/// honoured: it does what its text says. no_effect: accepted, with a note. not_yet and
/// refused: an error, unless the value has no effect (the default, null, a disabled section).
enum class Verdict { honoured, no_effect, not_yet, refused };

/// "honoured", "no effect", "not yet", "refused".
std::string_view verdict_name(Verdict verdict);

/// One key of one object of the configuration.
/// The reader, docs/run.schema.json and docs/configuration.md are all made from these keys.
struct Key {
  std::string_view name;
  Verdict verdict;
  /// See ValueType.
  std::string_view type;
  /// The default as JSON text, "" without one, or "required".
  std::string_view default_value;
  /// honoured: what it does. Else: why not, and what to do instead.
  std::string_view text;
  /// A JSON array of the other values that have no effect.
  std::string_view other_no_ops = "[]";
};

/// One object of the configuration.
struct Section {
  /// Path from the top of a run file: "engine.zero_optimization"; "" is the run file itself.
  std::string_view path;
  /// The `type`s that have this section, separated by spaces; "" for all.
  std::string_view when;
  std::string_view text;
  /// true: if the first key has no effect, the others have none either.
  bool gated = false;
  std::vector<Key> keys;
};

/// The sections of each part, in the order of the page.
std::vector<Section> run_sections();
std::vector<Section> engine_sections();
std::vector<Section> optimizer_sections();
std::vector<Section> zero_sections();
std::vector<Section> precision_sections();
std::vector<Section> later_sections();

/// All of the above.
const std::vector<Section>& all_sections();

/// The section of this path for this `type`, or nullptr. With type "" the first of the path.
const Section* find_section(std::string_view path, std::string_view type);

/// true when the path has one section for each `type`.
bool depends_on_type(std::string_view path);

/// A value's type, parsed from the table's short form:
///
///   "bool"  "text"  "texts"  "path"  "paths"  "reals"  "object"  "object_or_path"
///   "objects"   an object, or an array of them, with the section of this path
///   "bytes"     a whole number, or a text with a unit: "2GB"
///   "int >= 1"  "real 0..1"  "real 0..<1"   a number and its range
///   "word a|b|c"    one of these strings, compared exactly
///   "choice"        one of the keys of the section with this path, whatever the case
///   "switch"        an object that has an effect only if its "enabled" is true;
///                   "switch a|b": if one of these is
///   "int|auto >= 1"  "bool|auto"   or "auto", which the program fills in: auto_values.h
struct ValueType {
  enum class Kind {
    boolean,
    text,
    texts,
    path,
    paths,
    bytes,
    reals,
    object,
    objects,
    object_or_path,
    integer,
    real,
    word,
    choice,
    switch_
  };
  Kind kind = Kind::text;
  /// The choices of a word, or the members that turn a switch on.
  std::vector<std::string> words;
  std::optional<double> least;
  std::optional<double> most;
  bool above_least = false; // least itself is not allowed
  bool below_most = false;
  bool or_auto = false;

  static ValueType parse(std::string_view text);

  /// For messages: "a whole number >= 1".
  std::string describe() const;
  bool is_number() const { return kind == Kind::integer || kind == Kind::real; }
  bool in_range(double value) const;
};

/// The default and the other values of a key that have no effect.
std::vector<nlohmann::json> no_op_values(const Key& key);

} // namespace trireme::config
