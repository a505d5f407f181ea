#pragma once

#include <trireme/parallel/pipeline/layer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Which layers belong together: part p has layers [bounds[p], bounds[p + 1]).
struct Partition {
  std::vector<int64_t> bounds;
  std::vector<double> costs; ///< of each layer: what was balanced

  int64_t parts() const {
    return static_cast<int64_t>(bounds.size()) - 1;
  }
};

/// Cuts a row of costs into parts; returns the parts + 1 boundaries. Among all ways the one with the smallest
/// maximum, which sets a pipeline's speed; then with the smallest difference between maximum and minimum; then
/// with the earliest boundaries. Every part has an element, unless `allow_empty`: more parts than
/// elements leave the last ones empty. Exact, up to a rounding error of 1e-12 of the maximum. Cost: O(n^2 parts).
/// Errors: InputError for parts below 1, more parts than costs without `allow_empty`, and costs that
/// are negative or not finite.
std::vector<int64_t> balance(const std::vector<double>& costs, int64_t parts, bool allow_empty = false);

/// The same number of elements in each part, the first ones have one more where it does not divide.
std::vector<int64_t> uniform(int64_t count, int64_t parts, bool allow_empty = false);

/// Balances the number of layers whose type() contains a match of the regular expression (ECMAScript, any case).
/// Errors: InputError for an expression that is wrong or matches no layer.
std::vector<int64_t> by_type(const LayerList& layers, const std::string& regex, int64_t parts, bool allow_empty = false);

/// Returns the boundaries that the user gave, which are to go from 0 up to `count`.
/// Errors: InputError that says what is wrong with them.
std::vector<int64_t> manual(const std::vector<int64_t>& bounds, int64_t count, int64_t parts, bool allow_empty = false);

/// balance() with its costs.
Partition balance_costs(std::vector<double> costs, int64_t parts, bool allow_empty = false);

/// Partitions by "parameters", "uniform" or "type:REGEX"; or by `bounds`, unless empty. Costs are parameters,
/// 1 for each layer, or 1 for each that matches.
/// Errors: InputError for an unknown method, and as above.
Partition make_partition(const LayerList& layers, const std::string& method, const std::vector<int64_t>& bounds, int64_t parts,
                         bool allow_empty = false);

/// A table of layer, type, stage, parameters and cost, and the sums of each part. With chunks, part p is on
/// stage p % stages; `stages` 0: one part a stage.
std::string describe(const Partition& partition, const LayerList& layers, int stages = 0);

} // namespace trireme::pipeline
