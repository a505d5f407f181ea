#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme::context {

/// Most scores that attention with dropout over several ranks holds at a time; at least one query's.
inline constexpr int64_t kScoresAtOnce = int64_t{4} << 20;
/// Queries computed at a time, of `queries` with `scores` scores each (all heads).
constexpr int64_t queries_at_once(int64_t scores, int64_t queries) {
  return std::clamp<int64_t>(kScoresAtOnce / std::max<int64_t>(1, scores), 1, std::max<int64_t>(1, queries));
}

/// How attention reads the tokens of other ranks.
enum class Kind {
  /// Keys and values are passed around a ring. Any number of ranks. Liu et al. 2023, arXiv:2310.01889.
  ring,
  /// All-to-all: each rank gets all tokens of some of the heads. The number of ranks must divide the heads. Jacobs et
  /// al. 2023, arXiv:2309.14509.
  ulysses
};

} // namespace trireme::context
