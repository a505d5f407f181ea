#include <trireme/parallel/tensor/split_rules.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <regex>

namespace trireme::tensor {
namespace {

constexpr size_t kLongestPattern = 1000; // std::regex recurses for every bracket

std::regex compile(const std::string& pattern) {
  if (pattern.size() > kLongestPattern) {
    throw InputError(kPart, concat("a pattern has ", pattern.size(), " characters"),
                     concat("At most ", kLongestPattern, "."));
  }
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw InputError(kPart, concat("the pattern \"", pattern, "\" is not a regular expression: ", error.what()));
  }
}

// The words of a pattern without its operators, for a comparison with names: ".*\.querry$" is "querry".
std::string plain_words(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      ++i;
      out += pattern[i] == '.' ? "." : "";
    } else if (std::isalnum(static_cast<unsigned char>(pattern[i])) != 0 || pattern[i] == '_') {
      out += pattern[i];
    }
  }
  const size_t first = out.find_first_not_of('.');
  out = first == std::string::npos ? "" : out.substr(first);
  constexpr std::string_view weight = ".weight";
  return out.ends_with(weight) ? out.substr(0, out.size() - weight.size()) : out;
}

// The nearest name, full or by its last component; otherwise all of them.
std::string nearest_module(const std::string& pattern, const std::vector<std::string>& modules) {
  const std::string words = plain_words(pattern);
  std::string near = nearest(words, modules);
  for (auto it = modules.begin(); near.empty() && it != modules.end(); ++it) {
    const std::string last = it->substr(it->rfind('.') + 1);
    near = nearest(words.substr(words.rfind('.') + 1), {last}).empty() ? "" : *it;
  }
  if (!near.empty()) {
    return concat("The nearest module is \"", near, "\".");
  }
  constexpr size_t kMost = 12;
  std::vector<std::string> some(modules.begin(),
                                modules.begin() + static_cast<std::ptrdiff_t>(std::min(modules.size(), kMost)));
  return concat("Modules with a weight: ", join(some, ", "), modules.size() > kMost ? ", ..." : "", '.');
}

} // namespace

struct RuleMatches::Rule {
  std::string pattern;
  std::regex expression;
  bool first = false;
  /// A name that it matched only after an earlier rule, and that rule's pattern.
  std::string late_for = {};
  std::string earlier = {};
};

RuleMatches::RuleMatches(const std::vector<SplitRule>& rules) {
  for (const SplitRule& rule : rules) {
    rules_.push_back({rule.pattern, compile(rule.pattern)});
  }
}

RuleMatches::~RuleMatches() = default;

int RuleMatches::first(const std::vector<std::string>& names) {
  int found = -1;
  for (size_t i = 0; i < rules_.size(); ++i) {
    Rule& rule = rules_[i];
    const bool fits = std::ranges::any_of(names, [&](const std::string& name) {
      return std::regex_search(name, rule.expression, std::regex_constants::match_continuous);
    });
    if (fits && found < 0) {
      found = static_cast<int>(i);
      rule.first = true;
    } else if (fits && rule.late_for.empty()) {
      rule.late_for = names.front();
      rule.earlier = rules_[found].pattern;
    }
  }
  return found;
}

void RuleMatches::check_all_used(const std::vector<std::string>& modules) const {
  for (const Rule& rule : rules_) {
    if (!rule.first && rule.late_for.empty()) {
      throw InputError(kPart, concat("no parameter of the model matches the pattern \"", rule.pattern, '"'),
                       concat(nearest_module(rule.pattern, modules),
                              " A pattern is matched from the beginning of a name, as by Python's re.match."));
    }
    if (!rule.first) {
      throw InputError(kPart,
                       concat("the pattern \"", rule.pattern, "\" has no effect: all that it matches, such as ",
                              rule.late_for, ", is matched by earlier rules, such as \"", rule.earlier, '"'),
                       "The first rule that matches counts: put the narrower one first.");
    }
  }
}

} // namespace trireme::tensor
