#include <trireme/memory/activations/ways.h>

#include <trireme/base/error.h>

#include <charconv>

namespace trireme::activations {
namespace {

constexpr std::array<std::string_view, kWays.size()> kNames = {"keep", "recompute",      "host",
                                                               "nvme", "recompute_host", "recompute_nvme"};
constexpr int kMost = 100'000; // parts per word

} // namespace

std::string_view name_of(Way way) {
  return kNames.at(static_cast<size_t>(way));
}

std::optional<Way> way_of(std::string_view name) {
  for (const Way way : kWays) {
    if (name_of(way) == name) {
      return way;
    }
  }
  return std::nullopt;
}

std::vector<std::string> to_words(const std::vector<Way>& ways) {
  std::vector<std::string> words;
  for (size_t first = 0, last = 0; first < ways.size(); first = last) {
    while (last < ways.size() && ways[last] == ways[first]) {
      ++last;
    }
    const std::string name(name_of(ways[first]));
    words.push_back(last - first > 1 ? concat(last - first, '*', name) : name);
  }
  return words;
}

std::vector<Way> from_words(const std::vector<std::string>& words) {
  std::vector<Way> ways;
  for (const std::string& word : words) {
    const size_t star = word.find('*');
    int count = 1;
    bool counts = true;
    if (star != std::string::npos) {
      const char* const end = word.data() + star;
      const auto [stopped, error] = std::from_chars(word.data(), end, count);
      counts = error == std::errc() && stopped == end && count >= 1 && count <= kMost;
    }
    const auto way = way_of(std::string_view(word).substr(star == std::string::npos ? 0 : star + 1));
    if (!counts || !way) {
      throw InputError("activations", concat("\"", word, "\" is not an activation policy"),
                       "Use keep, recompute, host, nvme, recompute_host or recompute_nvme; for several layers in a "
                       "row \"4*nvme\".");
    }
    ways.insert(ways.end(), static_cast<size_t>(count), *way);
  }
  return ways;
}

} // namespace trireme::activations
