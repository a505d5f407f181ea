#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::activations {

/// What becomes of the activations of a part of a model between its forward and its backward.
enum class Way {
  /// They stay where they are.
  keep,
  /// Only the inputs stay; backward computes the rest again.
  recompute,
  /// They go to the host's memory and come back ahead of their backward.
  host,
  /// They go to a file.
  nvme,
  /// Only the inputs are kept, on the host: DeepSpeed's cpu_checkpointing.
  recompute_host,
  /// Only the inputs are kept, in a file.
  recompute_nvme,
};

inline constexpr std::array kWays = {Way::keep, Way::recompute,      Way::host,
                                     Way::nvme, Way::recompute_host, Way::recompute_nvme};

constexpr bool recomputes(Way way) {
  return way == Way::recompute || way == Way::recompute_host || way == Way::recompute_nvme;
}
constexpr bool to_host(Way way) {
  return way == Way::host || way == Way::recompute_host;
}
constexpr bool to_nvme(Way way) {
  return way == Way::nvme || way == Way::recompute_nvme;
}
constexpr bool moves(Way way) {
  return to_host(way) || to_nvme(way);
}

/// "keep", "recompute", "host", "nvme", "recompute_host", "recompute_nvme".
std::string_view name_of(Way way);
std::optional<Way> way_of(std::string_view name);

/// A list for people and configurations, equal neighbours together: {"3*nvme", "recompute", "2*keep"}.
std::vector<std::string> to_words(const std::vector<Way>& ways);
/// The opposite. Errors: InputError with the word.
std::vector<Way> from_words(const std::vector<std::string>& words);

} // namespace trireme::activations
