#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// The part of a logical tensor that one shard holds: elements [begin, end) of a box of the
/// tensor, in row-major order.
///
/// An empty box means the entire tensor, so a flat range (data parallel, ZeRO) needs only begin and end.
/// A tensor-parallel slice is a box with its full range, and ZeRO over tensor parallel is a range of a
/// box.
struct Region {
  std::vector<int64_t> box_offset;
  std::vector<int64_t> box_size;
  int64_t begin = 0;
  int64_t end = 0;
};

/// A run of elements that is contiguous in the tensor and in the shard.
struct Run {
  /// First element, counted in the row-major tensor.
  int64_t in_tensor = 0;
  /// First element, counted in the shard's data.
  int64_t in_shard = 0;
  int64_t numel = 0;
};

/// Product of the sizes; nullopt when a size is negative or the product (zeros counted as one) overflows.
std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape);

/// The reason why `region` is not part of a tensor of this shape, or "".
std::string region_problem(const Region& region, const std::vector<int64_t>& shape);

/// The runs of the region in elements [begin, end) of the row-major tensor, in increasing order. `region` must be
/// valid. Cost: O(runs found), independent of the box's rows before them.
std::vector<Run> runs(const Region& region, const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// A run of elements common to two regions of a tensor, contiguous in both.
struct CommonRun {
  /// First element, counted in each region's data.
  int64_t in_one = 0;
  int64_t in_other = 0;
  int64_t numel = 0;
};

/// The common elements, in increasing order. Both regions must be valid. Cost: O(rows of both between the first and the
/// last common element), O(1) for disjoint boxes.
std::vector<CommonRun> common_runs(const Region& one, const Region& other, const std::vector<int64_t>& shape);

/// Describes where valid regions leave out or repeat an element of the tensor; "" if every element occurs exactly once.
/// Cost: O(n log n + boxes^2), at most 1024 different boxes.
std::string coverage_problem(const std::vector<Region>& regions, const std::vector<int64_t>& shape);

} // namespace trireme::checkpoint
