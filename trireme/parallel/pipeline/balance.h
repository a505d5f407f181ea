#pragma once

#include <cstdint>
#include <vector>

namespace trireme::pipeline {

/// Cuts a row of costs into parts; returns the parts + 1 boundaries. Among all ways the one with the smallest
/// maximum, which sets a pipeline's speed; then with the smallest difference between maximum and minimum; then
/// with the earliest boundaries. Every part has an element, unless `allow_empty`: more parts than
/// elements leave the last ones empty. Exact, up to a rounding error of 1e-12 of the maximum. Cost: O(n^2 parts).
/// Errors: InputError for parts below 1, more parts than costs without `allow_empty`, and costs that
/// are negative or not finite.
std::vector<int64_t> balance(const std::vector<double>& costs, int64_t parts, bool allow_empty = false);

/// The same where an element does not cost the same everywhere: costs[p][i] is that of element i in part p.
std::vector<int64_t> balance_by_part(const std::vector<std::vector<double>>& costs, bool allow_empty = false);

/// The same number of elements in each part, the first ones have one more where it does not divide.
std::vector<int64_t> uniform(int64_t count, int64_t parts, bool allow_empty = false);

/// Returns the boundaries that the user gave, which are to go from 0 up to `count`.
/// Errors: InputError that says what is wrong with them.
std::vector<int64_t> manual(const std::vector<int64_t>& bounds, int64_t count, int64_t parts, bool allow_empty = false);

} // namespace trireme::pipeline
