#include <trireme/launch/last_words.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>

namespace trireme::launch {
namespace {

constexpr size_t kLongest = 300;
/// Lines to search for the error that ended a program: buffered output may follow its
/// stderr.
constexpr size_t kLastOnes = 5;
constexpr std::string_view kOfComm = "[comm] ";
constexpr std::string_view kWhat = "  what():  ";
constexpr std::string_view kRaised = "Exception raised from ";
/// Messages of gloo and NCCL for a lost connection. They do not know the peer's rank.
constexpr std::string_view kLostConnections[] = {"Connection closed by peer", "Connection reset by peer",
                                                 "gloo/transport/",
                                                 "remote process exited or there was a network error"};
/// After these our errors name the culprit; other parts also name ranks that wait.
constexpr std::string_view kAdvice[] = {"Look at the output of ", "Look at what "};

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Reads a number at the front and drops it; -1 without one.
int take_number(std::string_view& text) {
  int number = -1;
  for (size_t digits = 0; digits < 7 && !text.empty() && is_digit(text.front()); ++digits, text.remove_prefix(1)) {
    number = std::max(number, 0) * 10 + (text.front() - '0');
  }
  return number;
}

/// The numbers after each "rank " and "ranks ": "ranks 1, 2 and 3" has three.
std::vector<int> ranks_in(std::string_view text) {
  std::vector<int> found;
  for (size_t at = text.find("rank"); at != std::string_view::npos; at = text.find("rank")) {
    const bool begins = at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0;
    text.remove_prefix(at + 4);
    if (text.starts_with('s')) {
      text.remove_prefix(1);
    }
    while (begins && text.size() > 1) {
      const size_t between = text.starts_with(", ") ? 2 : text.starts_with(" and ") ? 5 : text.starts_with(' ') ? 1 : 0;
      if (between == 0 || text.size() <= between || !is_digit(text[between])) {
        break;
      }
      text.remove_prefix(between);
      found.push_back(take_number(text));
    }
  }
  return found;
}

std::vector<int> ranks_blamed_by(std::string_view error) {
  for (const std::string_view advice : kAdvice) {
    if (const size_t at = error.find(advice); at != std::string_view::npos) {
      const std::string_view who = error.substr(at + advice.size());
      if (who.starts_with("rank")) {
        return ranks_in(who.substr(0, who.find_first_of(";.")));
      }
    }
  }
  return ranks_in(error);
}

/// torch.distributed starts each line of a traceback with it: "[rank0]: ".
std::string_view without_rank(std::string_view line) {
  const size_t end = line.find("]: ");
  return line.starts_with("[rank") && end != std::string_view::npos ? line.substr(end + 3) : line;
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view one) {
    return std::equal(name.begin(), name.end(), one.begin(), one.end(),
                      [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
  });
}

/// The name of a part of Trireme or of a program: "data", "tensor parallel", "DataParallel", "trireme-rank". Programs
/// write their log levels so too.
bool is_part(std::string_view name) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  const bool is_name =
      std::all_of(name.begin(), name.end(), [&](char c) { return c == '_' || c == '-' || c == ' ' || is_letter(c); });
  return is_name && !name.empty() && is_letter(name.front()) && is_letter(name.back()) &&
         !one_of(name, {"trace", "debug", "info", "notice", "warn", "warning"});
}

struct PartError {
  std::string_view text;
  /// Trireme's log marks it as an error. Otherwise it may be a printed exception or a line of the program's own log.
  bool said = false;
};

/// "[part] ..." as trireme::Error writes it, by the log ("[rank 1] error: [part] ...") or a main().
PartError error_in(std::string_view line) {
  constexpr std::string_view kError = "error: ";
  const size_t at = line.starts_with("[rank ") ? line.find("] ") : std::string_view::npos;
  const std::string_view logged = at == std::string_view::npos ? line : line.substr(at + 2);
  const bool said = logged.starts_with(kError);
  if (said) {
    line = logged.substr(kError.size());
  } else if (!line.ends_with('.')) {
    return {};
  }
  const size_t end = line.find("] ");
  if (!line.starts_with('[') || end == std::string_view::npos || !is_part(line.substr(1, end - 1))) {
    return {};
  }
  return {line, said};
}

std::string shortened(std::string_view text) {
  return text.size() > kLongest ? std::string(text.substr(0, kLongest)) + "..." : std::string(text);
}

/// The error that ended a program.
struct LastWords {
  /// The line where they begin.
  std::deque<std::string>::const_iterator begin;
  /// Their first line; empty if it was cut off.
  std::string_view text;
  /// Origin of the text; a line that looks like an error may be from a program's log.
  enum class By { another, trireme, perhaps_a_log } by = By::another;
};

/// The message above libtorch's "Exception raised from", if it is there.
std::optional<LastWords> above(std::deque<std::string>::const_iterator raised,
                               std::deque<std::string>::const_iterator first) {
  if (raised == first) {
    return std::nullopt;
  }
  const auto line = std::prev(raised);
  std::string_view text = without_rank(*line);
  if (const size_t error = text.find("] error: "); text.starts_with("[rank ") && error != std::string_view::npos) {
    text.remove_prefix(error + 9);
  }
  return LastWords{line, text};
}

std::optional<LastWords> last_words(const std::deque<std::string>& lines) {
  size_t seen = 0;
  std::optional<LastWords>
      printed; // what() of libtorch's, unless the runtime or Python has written it: then it begins further up
  std::optional<LastWords> perhaps; // the last line that may be of a program's log, where nothing else is found
  for (auto next = lines.end(); next != lines.begin();) {
    const auto line = --next;
    const std::string_view text = without_rank(*line);
    if (text.starts_with(kWhat)) {
      return LastWords{line, text.substr(kWhat.size())};
    }
    if (text.starts_with("Traceback (most recent call last)")) {
      // A traceback's lines are indented; the first line that is not names the error.
      const auto after = std::find_if(std::next(line), lines.end(), [](std::string_view one) {
        one = without_rank(one);
        return !one.empty() && one.front() != ' ';
      });
      return LastWords{line, after == lines.end() ? std::string_view() : without_rank(*after)};
    }
    if (!printed && seen < kLastOnes && text.starts_with(kRaised)) {
      printed = above(line, lines.begin());
    }
    const PartError error = !printed && seen < kLastOnes ? error_in(text) : PartError();
    if (error.said) {
      return LastWords{line, error.text, LastWords::By::trireme};
    }
    if (!perhaps && !error.text.empty()) {
      perhaps = LastWords{line, error.text, LastWords::By::perhaps_a_log};
    }
    seen += text.empty() ? 0 : 1;
  }
  return printed ? printed : perhaps;
}

/// An error of trireme::comm; after a warning the program goes on.
std::string_view error_of_comm(std::string_view line) {
  const size_t at = line.find(kOfComm);
  return at == std::string_view::npos || line.substr(0, at).find("warning: ") != std::string_view::npos
             ? std::string_view()
             : line.substr(at);
}

} // namespace

Blame blame_in(const std::deque<std::string>& lines, int own, int ranks) {
  Blame blame;
  const std::optional<LastWords> words = last_words(lines);
  const auto begin = words && words->by != LastWords::By::perhaps_a_log ? words->begin : lines.begin();
  for (auto next = lines.end(); next != begin;) {
    if (const std::string_view error = error_of_comm(*--next); !error.empty()) {
      for (const int rank : ranks_blamed_by(error)) {
        if (rank >= 0 && rank < ranks && rank != own &&
            std::find(blame.ranks.begin(), blame.ranks.end(), rank) == blame.ranks.end()) {
          blame.ranks.push_back(rank);
        }
      }
      blame.others = !blame.ranks.empty();
      return blame;
    }
  }
  // Libraries log details that their exceptions omit; errors of Trireme's are complete.
  blame.others = ranks > 1 && std::any_of(words && words->by == LastWords::By::trireme ? begin : lines.begin(),
                                          lines.end(), [](std::string_view line) {
                                            return std::any_of(std::begin(kLostConnections), std::end(kLostConnections),
                                                               [&](std::string_view lost) {
                                                                 return line.find(lost) != std::string_view::npos;
                                                               });
                                          });
  return blame;
}

std::string exception_in(const std::deque<std::string>& lines) {
  const std::optional<LastWords> words = last_words(lines);
  return words ? shortened(words->text) : "";
}

} // namespace trireme::launch
