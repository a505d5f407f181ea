#include <trireme/config/expressions.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <iterator>
#include <regex>
#include <utility>

namespace trireme::config {
namespace {

// libstdc++'s other way of matching takes exponential time for expressions such as (.*)*x.
#ifdef __GLIBCXX__
constexpr auto kSyntax = std::regex_constants::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kSyntax = std::regex_constants::ECMAScript;
#endif

[[noreturn]] void refuse_use(const Expression& expression, const std::string& why) {
  throw InputError(
      "config",
      concat(expression.place, ": \"", printable(expression.text), "\" cannot be used as a regular expression: ", why),
      "Write a simpler one, without references such as \\1.");
}

// The length of the expression with its counted repetitions, {2,5}, written out, at most: matching takes that time, and
// a stack as deep, for each character of a name.
size_t written_out(const std::string& expression) {
  constexpr size_t kEnough = 1'000'000;
  size_t length = expression.size();
  for (size_t begin = expression.find('{'); begin != std::string::npos; begin = expression.find('{', begin + 1)) {
    size_t most = 1;
    size_t count = 0;
    for (size_t i = begin + 1; i < expression.size(); ++i) {
      const char c = expression[i];
      if (c != ',' && (c < '0' || c > '9')) {
        break;
      }
      count = c == ',' ? 0 : std::min(kEnough, 10 * count + static_cast<size_t>(c - '0'));
      most = std::max(most, count);
    }
    length = std::min(kEnough, length * most);
  }
  return length;
}

// Whether a reference such as \1 has a number that libstdc++ cannot compute without overflow.
bool has_long_reference(const std::string& expression) {
  constexpr size_t kMostDigits = 9;
  for (size_t i = expression.find('\\'); i != std::string::npos; i = expression.find('\\', i + 1)) {
    const size_t end = std::min(expression.find_first_not_of("0123456789", i + 1), expression.size());
    if (end - i - 1 > kMostDigits) {
      return true;
    }
  }
  return false;
}

// The letters, digits and dots of an expression.
std::string plain_part(const std::string& expression) {
  constexpr size_t kMost = 100;
  std::string plain;
  std::copy_if(expression.begin(), expression.begin() + static_cast<int64_t>(std::min(expression.size(), kMost)),
               std::back_inserter(plain), [](char c) {
                 return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                        c == '_';
               });
  return plain;
}

// Edits that turn the text into the nearest part of the name (Sellers 1980, Journal of Algorithms 1).
size_t distance_within(const std::string& text, const std::string& name) {
  std::vector<size_t> row(name.size() + 1, 0);
  for (size_t i = 1; i <= text.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= name.size(); ++j) {
      const size_t replaced = diagonal + (text[i - 1] == name[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return *std::min_element(row.begin(), row.end());
}

} // namespace

std::vector<bool> matches_of(const Expression& expression, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 10'000;
  std::vector<bool> found;
  if (written_out(expression.text) > kLongest) {
    refuse_use(expression, concat("with its repetitions written out it has more than ", kLongest, " characters"));
  }
  if (has_long_reference(expression.text)) {
    refuse_use(expression, "it refers to a group of a number with too many digits");
  }
  try {
    const std::regex regex(expression.text, kSyntax);
    for (const std::string& name : names) {
      found.push_back(std::regex_search(name, regex));
    }
  } catch (const std::regex_error& error) {
    refuse_use(expression, error.what());
  }
  return found;
}

std::string nearest_names(const std::string& expression, const std::set<std::string>& names) {
  constexpr size_t kShown = 3;
  const std::string text = plain_part(expression);
  std::vector<std::pair<size_t, std::string>> nearest;
  for (const std::string& name : names) {
    nearest.emplace_back(distance_within(text, name), printable(name));
  }
  std::stable_sort(nearest.begin(), nearest.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, nearest.size()); ++i) {
    shown.push_back(nearest[i].second);
  }
  return join(shown, ", ");
}

} // namespace trireme::config
