#pragma once

#include <cstdint>
#include <vector>

namespace trireme::pipeline {

/// Splits a row of costs into parts; returns the parts + 1 boundaries. Chooses the partition with the smallest
/// maximum, which sets a pipeline's speed; then the smallest difference between maximum and minimum; then the
/// earliest boundaries. Every part has an element, unless `allow_empty`: with more parts than elements the last
/// ones are empty. Exact, up to a rounding error of 1e-12 of the maximum. Cost: O(n^2 parts). Errors:
/// InputError for parts below 1, more parts than costs without `allow_empty`, and costs that are negative or
/// not finite.
std::vector<int64_t> balance(const std::vector<double>& costs, int64_t parts, bool allow_empty = false);

/// The same with costs that depend on the part: costs[p][i] is the cost of element i in part p.
std::vector<int64_t> balance_by_part(const std::vector<std::vector<double>>& costs, bool allow_empty = false);

/// Puts the same number of elements in each part; with a remainder the first parts have one more.
std::vector<int64_t> uniform(int64_t count, int64_t parts, bool allow_empty = false);

/// Checks and returns the user's boundaries, which must go from 0 up to `count`. Errors: InputError that names the
/// first error in them.
std::vector<int64_t> manual(const std::vector<int64_t>& bounds, int64_t count, int64_t parts, bool allow_empty = false);

} // namespace trireme::pipeline
