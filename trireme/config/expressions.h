#pragma once

#include <set>
#include <string>
#include <vector>

namespace trireme::config {

/// A regular expression of a run file (std::regex, ECMAScript, without references back to a bracket), searched for in
/// names; upper and lower case differ.
struct Expression {
  std::string text;
  /// Where it is written: "run.json:7:15: training.freeze[1]".
  std::string place;
};

/// For each of these names, whether the expression matches a part of it. Cost: names times the lengths of name and
/// expression, at most 10,000 with its repetitions written out. Errors: InputError with the place of an expression that
/// cannot be used.
std::vector<bool> matches_of(const Expression& expression, const std::vector<std::string>& names);

/// The three names that need the fewest edits for a part to equal the expression's letters: "a, b, c".
std::string nearest_names(const std::string& expression, const std::set<std::string>& names);

} // namespace trireme::config
