#include <trireme/comm/environment.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <charconv>

namespace trireme::comm {
namespace {

constexpr size_t kMostHosts = 100'000;
/// Longest host name in DNS.
constexpr size_t kMostLetters = 253;
/// Most digits of a number in brackets, leading zeros included.
constexpr size_t kMostDigits = 18;

[[noreturn]] void broken(const std::string& list) {
  throw InputError("comm", concat("cannot read the host list \"", list, "\"."),
                   "It should look like node[01-04,7],other; set MASTER_ADDR and MASTER_PORT to avoid it.");
}

/// Splits at commas outside brackets.
std::vector<std::string> split_outside_brackets(const std::string& list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char letter : list) {
    depth += letter == '[' ? 1 : letter == ']' ? -1 : 0;
    if (depth < 0 || depth > 1) {
      broken(list);
    }
    if (letter == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  if (depth != 0) {
    broken(list);
  }
  return parts;
}

int64_t number_of(const std::string& text, const std::string& list) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || text.size() > kMostDigits) {
    broken(list);
  }
  return value;
}

/// "01-03,7" to 01 02 03 7; keeps leading zeros.
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& list) {
  std::vector<std::string> result;
  for (const auto& range : split(ranges, ',')) {
    const auto bounds = split(range, '-');
    if (bounds.size() > 2) {
      broken(list);
    }
    const int64_t first = number_of(bounds.front(), list);
    const int64_t last = number_of(bounds.back(), list);
    if (last < first || static_cast<size_t>(last - first) >= kMostHosts - result.size()) {
      broken(list);
    }
    for (int64_t number = first; number <= last; ++number) {
      std::string text = std::to_string(number);
      if (text.size() < bounds.front().size()) {
        text.insert(0, bounds.front().size() - text.size(), '0');
      }
      result.push_back(std::move(text));
    }
  }
  return result;
}

} // namespace

std::vector<std::string> expand_host_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (const auto& part : split_outside_brackets(list)) {
    std::vector<std::string> names = {""};
    size_t at = 0;
    while (at < part.size()) {
      const size_t open = part.find('[', at);
      const std::string plain = part.substr(at, open - at);
      for (auto& name : names) {
        name += plain;
      }
      if (names.front().size() > kMostLetters) {
        broken(list);
      }
      if (open == std::string::npos) {
        break;
      }
      const size_t close = part.find(']', open);
      const auto endings = expand_ranges(part.substr(open + 1, close - open - 1), list);
      std::vector<std::string> longer;
      if (names.size() * endings.size() > kMostHosts) {
        broken(list);
      }
      for (const auto& name : names) {
        for (const auto& ending : endings) {
          longer.push_back(name + ending);
        }
      }
      names = std::move(longer);
      at = close + 1;
    }
    for (auto& name : names) {
      if (name.empty() || hosts.size() >= kMostHosts) {
        broken(list);
      }
      hosts.push_back(std::move(name));
    }
  }
  return hosts;
}

} // namespace trireme::comm
