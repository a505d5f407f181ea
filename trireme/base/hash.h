#pragma once

#include <cstdint>
#include <string_view>

namespace trireme {

/// One step of FNV-1a.
constexpr uint64_t fnv1a_step(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 1099511628211ull;
}
/// Start value of FNV-1a.
inline constexpr uint64_t kFnv1aStart = 1469598103934665603ull;

/// FNV-1a of the bytes; pass the previous `hash` to continue. Not secure against forgery.
constexpr uint64_t fnv1a(std::string_view text, uint64_t hash = kFnv1aStart) {
  for (const char c : text) {
    hash = fnv1a_step(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

/// SplitMix64's mixing (Steele et al. 2014): every bit of the result depends on every bit of `x`. 0 stays 0.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
/// The increment of SplitMix64.
inline constexpr uint64_t kMixStep = 0x9e3779b97f4a7c15ull;

} // namespace trireme
