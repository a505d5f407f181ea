#include <trireme/launch/last_words.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace trireme::launch {
namespace {

constexpr size_t kLongest = 300;
/// An error that ends a program is among its last lines: what it has printed may come later than what it says on stderr.
constexpr size_t kLastOnes = 5;
constexpr std::string_view kOfComm = "[comm] ";
constexpr std::string_view kWhat = "  what():  ";
/// What gloo and NCCL say when the process at the other end is gone. They do not know its rank.
constexpr std::string_view kLostConnections[] = {"Connection closed by peer", "Connection reset by peer", "gloo/transport/",
                                                 "remote process exited or there was a network error"};
/// After these our errors name who is at fault; elsewhere also who waits for whom.
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

/// torch.distributed begins each line of a traceback so: "[rank0]: ".
std::string_view without_rank(std::string_view line) {
  const size_t end = line.find("]: ");
  return line.starts_with("[rank") && end != std::string_view::npos ? line.substr(end + 3) : line;
}

/// "[part] ..." as trireme::Error writes it, by the log or a main().
std::string_view error_in(std::string_view line) {
  if (const size_t at = line.find("error: ["); at != std::string_view::npos) {
    line.remove_prefix(at + 7);
  } else if (!line.ends_with('.')) {
    return {};
  }
  const size_t end = line.find("] ");
  const bool part = line.starts_with('[') && end != std::string_view::npos && end > 1
      && std::all_of(line.begin() + 1, line.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return std::islower(static_cast<unsigned char>(c)) != 0; });
  return part ? line : std::string_view();
}

std::string shortened(std::string_view text) {
  return text.size() > kLongest ? std::string(text.substr(0, kLongest)) + "..." : std::string(text);
}

} // namespace

Blame blame_in(const std::deque<std::string>& lines, int own, int ranks) {
  Blame blame;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string_view text = *line;
    if (const size_t at = text.find(kOfComm); at != std::string_view::npos) {
      for (const int rank : ranks_blamed_by(text.substr(at))) {
        if (rank >= 0 && rank < ranks && rank != own && std::find(blame.ranks.begin(), blame.ranks.end(), rank) == blame.ranks.end()) {
          blame.ranks.push_back(rank);
        }
      }
      blame.others = !blame.ranks.empty();
      return blame;
    }
  }
  blame.others = ranks > 1 && std::any_of(lines.begin(), lines.end(), [](std::string_view line) {
    return std::any_of(std::begin(kLostConnections), std::end(kLostConnections), [&](std::string_view lost) { return line.find(lost) != std::string_view::npos; });
  });
  return blame;
}

std::string exception_in(const std::deque<std::string>& lines) {
  size_t seen = 0;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string_view text = without_rank(*line);
    if (text.starts_with(kWhat)) {
      return shortened(text.substr(kWhat.size()));
    }
    if (text.starts_with("Traceback (most recent call last)")) {
      // Its own lines are indented; the first that is not says what happened.
      const auto after = std::find_if(line.base(), lines.end(), [](std::string_view one) {
        one = without_rank(one);
        return !one.empty() && one.front() != ' ';
      });
      return after == lines.end() ? "" : shortened(without_rank(*after));
    }
    if (const std::string_view error = seen < kLastOnes ? error_in(text) : ""; !error.empty()) {
      return shortened(error);
    }
    seen += text.empty() ? 0 : 1;
  }
  return "";
}

} // namespace trireme::launch
