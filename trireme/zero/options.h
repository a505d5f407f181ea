#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace trireme::zero {

/// What the data-parallel ranks share among them instead of each holding it.
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054.
struct ZeroOptions {
  /// 0: nothing; 1: optimizer states; 2: gradients too; 3: parameters too.
  int stage = 0;
  /// Stage 3: parameters with fewer elements than this stay whole on every rank...
  int64_t param_persistence_threshold = 100000;
  /// ...the smallest first, as long as they are not more than this together.
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// Stage 3: elements that may be gathered ahead of time; absent: the next unit.
  std::optional<int64_t> prefetch_elements = std::nullopt;
  /// Stage 3: elements that are whole at a time, as far as units that the step uses again are kept for it; absent: in
  /// one pipeline stage nothing is kept, in several half of what a stage's units have.
  std::optional<int64_t> max_live_elements = std::nullopt;

  /// Stages 1 to 3: so many neighbouring data ranks hold one copy of what is sharded, and the copies are kept equal;
  /// absent: all together.
  std::optional<int64_t> shard_size = std::nullopt;

  /// max_live_elements, also where it is absent, for units of so many elements on a stage of so many.
  int64_t live_elements(int64_t unit_elements, int64_t stages) const {
    return max_live_elements.value_or(stages > 1 ? unit_elements / 2 : 0);
  }
};

} // namespace trireme::zero
