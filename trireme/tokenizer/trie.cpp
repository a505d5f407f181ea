#include <trireme/tokenizer/trie.h>

#include <utility>

namespace trireme::tokenizer {

void Trie::put(const Edge& edge) {
  uint64_t at = slot_of(edge.from) & mask_;
  while (edges_[at].from != kFree) {
    at = (at + 1) & mask_;
  }
  edges_[at] = edge;
}

void Trie::add(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (const char byte : key) {
    uint32_t next = step(node, byte);
    if (next == kNowhere) {
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      if (2 * values_.size() > edges_.size()) { // at most half of the slots are used
        const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(4 * edges_.size()));
        mask_ = edges_.size() - 1;
        for (const Edge& edge : old) {
          if (edge.from != kFree) {
            put(edge);
          }
        }
      }
      put({edge_of(node, byte), next});
    }
    node = next;
  }
  values_[node] = value;
}

uint32_t Trie::walk(uint32_t node, std::string_view text) const {
  for (const char byte : text) {
    if (node == kNowhere) {
      break;
    }
    node = step(node, byte);
  }
  return node;
}

} // namespace trireme::tokenizer
