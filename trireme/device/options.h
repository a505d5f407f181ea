#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace trireme::device {

/// K of "cuda:K"; absent for other text, or if K is not a device number (0 to 127).
inline std::optional<int> gpu_number(std::string_view asked) {
  constexpr std::string_view kBegin = "cuda:";
  int number = -1;
  if (!asked.starts_with(kBegin)) {
    return std::nullopt;
  }
  const auto [rest, error] = std::from_chars(asked.data() + kBegin.size(), asked.data() + asked.size(), number);
  const bool is_number = error == std::errc() && rest == asked.data() + asked.size() && number >= 0 && number <= 127;
  return is_number ? std::optional(number) : std::nullopt;
}

/// Whether `asked` is "auto", "cpu", "cuda" or "cuda:K".
inline bool is_choice(std::string_view asked) {
  return asked == "auto" || asked == "cpu" || asked == "cuda" || gpu_number(asked);
}

inline constexpr const char* kChoices = "Use \"auto\", \"cpu\", \"cuda\", or \"cuda:0\" with the number of a GPU.";

} // namespace trireme::device
