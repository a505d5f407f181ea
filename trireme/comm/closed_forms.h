#pragma once

#include <cstdint>

namespace trireme::comm {

/// Bytes that one of `size` ranks sends of a tensor of `bytes` if each other rank gets, or passes on, one slice.
inline int64_t share_of_others(int64_t bytes, int size) {
  return bytes * (size - 1) / size;
}

/// Ranks to which the one at `distance` from the root passes a broadcast on in a binomial tree: distance + 2^i for
/// every 2^i > distance.
inline int64_t children_in_binomial_tree(int distance, int size) {
  int64_t children = 0;
  for (int64_t bit = 1; bit < size; bit <<= 1) {
    children += bit > distance && distance + bit < size ? 1 : 0;
  }
  return children;
}

} // namespace trireme::comm
