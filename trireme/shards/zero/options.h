#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace trireme::zero {

/// Options of what the data-parallel ranks shard instead of replicating. Source: Rajbhandari et al. 2020,
/// arXiv:1910.02054.
struct ZeroOptions {
  /// 0: nothing; 1: optimizer states; 2: gradients too; 3: parameters too.
  int stage = 0;
  /// Stage 3: parameters with fewer elements than this are not sharded...
  int64_t param_persistence_threshold = 100000;
  /// ...the smallest first, up to this many elements in total.
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// Stage 3: elements that may be prefetched; absent: the next unit.
  std::optional<int64_t> prefetch_elements = std::nullopt;
  /// Stage 3: gathered elements allowed at a time, used to keep units that the step uses again. Absent: none are kept
  /// with one pipeline stage, up to half the elements of a stage's units with several.
  std::optional<int64_t> max_live_elements = std::nullopt;

  /// Stages 1 to 3: number of neighbouring data ranks that hold one copy of what is sharded; copies stay equal. Absent:
  /// all data ranks.
  std::optional<int64_t> shard_size = std::nullopt;

  /// max_live_elements or its default, given the elements of a stage's units and the number of stages.
  int64_t live_elements(int64_t unit_elements, int64_t stages) const {
    return max_live_elements.value_or(stages > 1 ? unit_elements / 2 : 0);
  }
};

} // namespace trireme::zero
