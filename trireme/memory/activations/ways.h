#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::activations {

/// Activation policy of a part of a model between its forward and its backward.
enum class Way {
  /// Activations stay in memory.
  keep,
  /// Only the inputs stay; backward recomputes the rest.
  recompute,
  /// Activations are moved to host memory, and prefetched before their backward.
  host,
  /// Activations are moved to a file.
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

/// A list for people and configurations, with equal neighbours merged: {"3*nvme", "recompute", "2*keep"}.
std::vector<std::string> to_words(const std::vector<Way>& ways);
/// Parses such a list. Errors: InputError with the word.
std::vector<Way> from_words(const std::vector<std::string>& words);

} // namespace trireme::activations
