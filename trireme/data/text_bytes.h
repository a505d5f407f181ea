#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::data {

/// How many bytes a text has, and how often each occurs.
struct TextBytes {
  std::array<int64_t, 256> counts{};
  int64_t total = 0;

  void add(std::string_view text) {
    for (const char byte : text) {
      ++counts[static_cast<unsigned char>(byte)];
    }
    total += static_cast<int64_t>(text.size());
  }
  bool operator==(const TextBytes&) const = default;
};

} // namespace trireme::data
