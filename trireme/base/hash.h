#pragma once

#include <cstdint>
#include <string_view>

namespace trireme {

/// FNV-1a of the bytes, going on from `hash` where a text comes in parts. Tells texts apart, proves nothing.
constexpr uint64_t fnv1a(std::string_view text, uint64_t hash = 1469598103934665603ull) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  return hash;
}

} // namespace trireme
