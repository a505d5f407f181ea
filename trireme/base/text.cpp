#include <trireme/base/text.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

namespace trireme {
namespace {

// Optimal string alignment distance: insert, delete, replace, swap neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    d[i][0] = i;
  }
  for (size_t j = 0; j <= b.size(); ++j) {
    d[0][j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

bool in_range(std::string_view text, size_t at, int low, int high) {
  return at < text.size() && static_cast<uint8_t>(text[at]) >= low && static_cast<uint8_t>(text[at]) <= high;
}

/// Length of the well-formed sequence at `at` (Unicode table 3-7), 0 when there is none.
size_t sequence_length(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return in_range(text, at + 1, 0x80, 0xBF) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const int low = lead == 0xE0 ? 0xA0 : 0x80;  // overlong
    const int high = lead == 0xED ? 0x9F : 0xBF; // surrogates
    return in_range(text, at + 1, low, high) && in_range(text, at + 2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const int low = lead == 0xF0 ? 0x90 : 0x80;
    const int high = lead == 0xF4 ? 0x8F : 0xBF;
    const bool whole =
        in_range(text, at + 1, low, high) && in_range(text, at + 2, 0x80, 0xBF) && in_range(text, at + 3, 0x80, 0xBF);
    return whole ? 4 : 0;
  }
  return 0;
}

// C1 controls (U+0080 to U+009F) begin terminal sequences, as an escape does.
bool is_control(std::string_view text, size_t at, size_t length) {
  const auto byte = static_cast<uint8_t>(text[at]);
  return length == 1 ? byte < 0x20 || byte == 0x7F
                     : length == 2 && byte == 0xC2 && static_cast<uint8_t>(text[at + 1]) < 0xA0;
}

} // namespace

std::string clean_utf8(std::string_view text, std::string_view instead) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text, i);
    const bool stays = text[i] == '\n' || text[i] == '\t' || (length > 0 && !is_control(text, i, length));
    clean += stays ? text.substr(i, length) : instead;
    i += std::max<size_t>(length, 1);
  }
  return clean;
}

std::string printable(std::string_view text) {
  std::string line = clean_utf8(text, "?");
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, '?');
  return line;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string wanted = lower(word);
  const size_t allowed = std::max<size_t>(1, wanted.size() / 3);
  std::string best;
  size_t best_distance = allowed + 1;
  for (const std::string& candidate : candidates) {
    const auto [shorter, longer] = std::minmax({wanted.size(), candidate.size()});
    if (longer - shorter >= best_distance) {
      continue; // the distance is at least that
    }
    const size_t distance = edit_distance(wanted, lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string best = nearest(word, candidates);
  if (!best.empty()) {
    return "Did you mean \"" + best + "\"?";
  }
  return "Known: " + join(candidates, ", ") + ".";
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    out += i == 0 ? "" : std::string(separator);
    out += parts[i];
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1) {
    out.emplace_back(text.substr(begin, end - begin));
  }
  out.emplace_back(text.substr(begin));
  return out;
}

std::string for_shell(const std::string& word) {
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+") ==
      std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

} // namespace trireme
