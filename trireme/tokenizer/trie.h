#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// Finds the keys that begin at a place of a text, byte by byte. Cost of step(): one look-up.
class Trie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  /// Adds a key, or replaces its value.
  void add(std::string_view key, int32_t value);

  /// The node behind `node` by one more byte; kNowhere if no key continues so.
  uint32_t step(uint32_t node, char byte) const {
    const uint64_t edge = edge_of(node, byte);
    for (uint64_t at = slot_of(edge) & mask_;; at = (at + 1) & mask_) {
      if (edges_[at].from == edge) {
        return edges_[at].to;
      }
      if (edges_[at].from == kFree) {
        return kNowhere;
      }
    }
  }
  /// The node of a text that begins at `node`; kNowhere if no key continues so.
  uint32_t walk(uint32_t node, std::string_view text) const;

  /// The value of the key that ends at `node`; -1 if none does.
  int32_t value(uint32_t node) const { return values_[node]; }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Edge {
    uint64_t from = kFree;
    uint32_t to = 0;
  };

  static uint64_t edge_of(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<unsigned char>(byte); }
  static uint64_t slot_of(uint64_t edge) { return (edge * 0x9e3779b97f4a7c15) >> 20; }
  void put(const Edge& edge);

  std::vector<Edge> edges_ = std::vector<Edge>(16);
  uint64_t mask_ = 15;
  std::vector<int32_t> values_ = {-1};
};

} // namespace trireme::tokenizer
