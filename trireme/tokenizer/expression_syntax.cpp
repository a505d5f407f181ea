#include <trireme/tokenizer/expression_syntax.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/expression.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>

namespace trireme::tokenizer {
namespace {

// Inside of [...].
constexpr const char* kSpace =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr const char* kHex = "0-9a-fA-F";
constexpr const char* kPunctuation = "\\p{P}$+<=>^`|~";

// Long names of general categories; PCRE2 10.42 has only the short ones.
const std::map<std::string, std::string>& category_names() {
  static const std::map<std::string, std::string> names = {{"letter", "L"},
                                                           {"uppercaseletter", "Lu"},
                                                           {"lowercaseletter", "Ll"},
                                                           {"titlecaseletter", "Lt"},
                                                           {"modifierletter", "Lm"},
                                                           {"otherletter", "Lo"},
                                                           {"mark", "M"},
                                                           {"nonspacingmark", "Mn"},
                                                           {"spacingmark", "Mc"},
                                                           {"enclosingmark", "Me"},
                                                           {"number", "N"},
                                                           {"decimalnumber", "Nd"},
                                                           {"letternumber", "Nl"},
                                                           {"othernumber", "No"},
                                                           {"punctuation", "P"},
                                                           {"connectorpunctuation", "Pc"},
                                                           {"dashpunctuation", "Pd"},
                                                           {"openpunctuation", "Ps"},
                                                           {"closepunctuation", "Pe"},
                                                           {"initialpunctuation", "Pi"},
                                                           {"finalpunctuation", "Pf"},
                                                           {"otherpunctuation", "Po"},
                                                           {"symbol", "S"},
                                                           {"mathsymbol", "Sm"},
                                                           {"currencysymbol", "Sc"},
                                                           {"modifiersymbol", "Sk"},
                                                           {"othersymbol", "So"},
                                                           {"separator", "Z"},
                                                           {"spaceseparator", "Zs"},
                                                           {"lineseparator", "Zl"},
                                                           {"paragraphseparator", "Zp"},
                                                           {"other", "C"},
                                                           {"control", "Cc"},
                                                           {"format", "Cf"},
                                                           {"surrogate", "Cs"},
                                                           {"privateuse", "Co"},
                                                           {"unassigned", "Cn"}};
  return names;
}

class Translation {
 public:
  Translation(std::string_view expression, const std::string& where) : in_(expression), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      step();
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& next) const {
    throw InputError("tokenizer",
                     concat(where_, ": the expression ", printable(in_.substr(0, 120)), " has ", what, " at byte ", at_,
                            ", which is not supported"),
                     next);
  }

  bool ahead(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void take(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  void step() {
    switch (in_[at_]) {
      case '\\':
        escape(/*in_class=*/false);
        break;
      case '[':
        char_class();
        break;
      case '(':
        group();
        break;
      case '{':
        interval();
        break;
      default:
        take(1);
    }
  }

  void replace(size_t bytes, std::string_view with) {
    out_ += with;
    at_ += bytes;
  }

  void escape(bool in_class) {
    if (at_ + 1 == in_.size()) {
      refuse("a single \\ at its end", "Write \\\\ for a backslash.");
    }
    const char c = in_[at_ + 1];
    const auto set = [&](std::string_view chars, bool negated) {
      if (in_class && negated) {
        refuse(concat('\\', c, " inside of [...]"), "Write the class as an alternative beside [...].");
      }
      replace(2, in_class ? std::string(chars) : concat(negated ? "[^" : "[", chars, ']'));
    };
    switch (c) {
      case 's':
        return set(kSpace, false);
      case 'S':
        // Inside of a class PCRE2's own, which differs in U+180E alone.
        return in_class ? take(2) : set(kSpace, true);
      case 'w':
        return set(kWord, false);
      case 'W':
        return set(kWord, true);
      case 'h':
        return set(kHex, false);
      case 'H':
        return set(kHex, true);
      case 'v':
        return replace(2, "\\x0b");
      case 'b':
        if (!in_class) {
          return replace(2, concat("(?:(?<=[", kWord, "])(?![", kWord, "])|(?<![", kWord, "])(?=[", kWord, "]))"));
        }
        return take(2);
      case 'B':
        return replace(2, concat("(?:(?<=[", kWord, "])(?=[", kWord, "])|(?<![", kWord, "])(?![", kWord, "]))"));
      case 'p':
      case 'P':
        return property();
      case 'u':
        if (at_ + 6 > in_.size()) {
          refuse("\\u without four digits", "Write \\x{...}.");
        }
        return replace(6, concat("\\x{", in_.substr(at_ + 2, 4), '}'));
      default:
        if (std::isalpha(static_cast<unsigned char>(c)) != 0 &&
            std::string_view(in_class ? "adefnrtxD" : "adefnrtxDAZzGKRXkg").find(c) == std::string_view::npos) {
          refuse(concat('\\', c), "Remove it, or write what it stands for.");
        }
        return take(2);
    }
  }

  // \p{Han}, \P{L}, \p{^Letter}
  void property() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos) {
      refuse("\\p without {...}", "Write \\p{NAME}.");
    }
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool negated = !name.empty() && name[0] == '^';
    name.remove_prefix(negated ? 1 : 0);
    std::string plain;
    for (const char c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '&') {
        plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (c != '_' && c != '-' && c != ' ') {
        refuse(concat("the property \"", printable(name), '"'), "Write the name of a category or script.");
      }
    }
    std::string known(name);
    if (const auto found = category_names().find(plain); found != category_names().end()) {
      known = found->second;
    } else if (plain == "punct") {
      return in_class_ ? replace(close + 1 - at_, kPunctuation)
                       : replace(close + 1 - at_, concat(in_[at_ + 1] == 'P' ? "[^" : "[", kPunctuation, ']'));
    } else if (plain == "alpha" || plain == "alphabetic") {
      known = "Alphabetic";
    } else if (plain == "digit") {
      known = "Nd";
    } else if (plain.size() > 2 && Expression::compiles(concat("\\p{sc:", plain, '}'))) {
      known = concat("sc:", plain); // otherwise PCRE2 would look among extensions of scripts too
    }
    const bool capital = in_[at_ + 1] == 'P';
    replace(close + 1 - at_, concat(capital != negated ? "\\P{" : "\\p{", known, '}'));
  }

  void char_class() {
    in_class_ = true;
    take(1);
    if (at_ < in_.size() && in_[at_] == '^') {
      take(1);
    }
    bool first = true;
    while (true) {
      if (at_ >= in_.size()) {
        refuse("a [ without its ]", "Write \\[ for a bracket.");
      }
      if (in_[at_] == ']') {
        if (first) {
          refuse("an empty class", "Write \\] for a bracket.");
        }
        break;
      }
      first = false;
      if (ahead("&&")) {
        refuse("an intersection of classes (&&)", "Write it with a lookahead: (?=[...])[...].");
      }
      if (ahead("[:")) {
        posix_class();
      } else if (in_[at_] == '[') {
        refuse("a class inside of a class", "Write its members into the outer one, or \\[ for a bracket.");
      } else if (in_[at_] == '\\') {
        escape(/*in_class=*/true);
      } else {
        take(1);
      }
    }
    take(1);
    in_class_ = false;
  }

  void posix_class() {
    const size_t end = in_.find(":]", at_ + 2);
    if (end == std::string_view::npos) {
      refuse("[: without :]", "Write \\[ for a bracket.");
    }
    const std::string_view name = in_.substr(at_ + 2, end - at_ - 2);
    const size_t bytes = end + 2 - at_;
    if (name == "punct") {
      return replace(bytes, kPunctuation);
    }
    if (name == "word") {
      return replace(bytes, kWord);
    }
    if (name == "space") {
      return replace(bytes, kSpace);
    }
    if (name == "^punct" || name == "^word" || name == "^space") {
      refuse(concat("[:", name, ":]"), "Write the class as an alternative beside [...].");
    }
    take(bytes);
  }

  void group() {
    if (!ahead("(?")) {
      return take(1);
    }
    if (ahead("(?~")) {
      refuse("the absent operator (?~", "Write it with a negative lookahead.");
    }
    size_t end = at_ + 2;
    while (end < in_.size() && (std::isalpha(static_cast<unsigned char>(in_[end])) != 0 || in_[end] == '-')) {
      ++end;
    }
    const bool are_options = end > at_ + 2 && end < in_.size() && (in_[end] == ':' || in_[end] == ')');
    if (!are_options) {
      return take(2);
    }
    std::string options;
    for (const char c : in_.substr(at_ + 2, end - at_ - 2)) {
      if (c != 'i' && c != 'm' && c != '-') {
        refuse(concat("the option ", c), "Only i and m are supported.");
      }
      options += c == 'm' ? 's' : c;
    }
    // Behind | they hold for all that follows, in both syntaxes.
    const bool is_first = at_ == 0 || in_[at_ - 1] == '(' || in_[at_ - 1] == ':' || in_[at_ - 1] == '|';
    if (in_[end] == ')' && !is_first) {
      refuse("options that do not begin a group", "Write (?i:...).");
    }
    replace(end + 1 - at_, concat("(?", options, in_[end]));
  }

  // {n}, {n,}, {,m} or {n,m}; else a brace.
  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) != 0 || in_[end] == ',')) {
      ++end;
    }
    const bool is_interval = end < in_.size() && in_[end] == '}' && end > at_ + 1 && at_ > 0;
    if (!is_interval) {
      return replace(1, "\\{");
    }
    if (end + 1 < in_.size() && in_[end + 1] == '+') {
      refuse("{n,m}+", "Oniguruma repeats the repetition, other libraries do not backtrack: write (?:...{n,m})+.");
    }
    if (in_[at_ + 1] == ',') {
      return replace(2, "{0,");
    }
    take(end + 1 - at_);
  }

  std::string_view in_;
  const std::string& where_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

} // namespace

std::string pcre2_syntax(std::string_view expression, const std::string& where) {
  return Translation(expression, where).run();
}

} // namespace trireme::tokenizer
