#pragma once

#include <trireme/parallel/pipeline/balance.h>
#include <trireme/parallel/pipeline/layer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Assigns layers to parts: part p has layers [bounds[p], bounds[p + 1]).
struct Partition {
  std::vector<int64_t> bounds;
  std::vector<double> costs; ///< of each layer: what was balanced

  int64_t parts() const { return static_cast<int64_t>(bounds.size()) - 1; }
};

/// balance_by_part(), with each layer's cost in its part.
Partition balance_costs_by_part(const std::vector<std::vector<double>>& costs, bool allow_empty = false);

/// balance() with its costs.
Partition balance_costs(std::vector<double> costs, int64_t parts, bool allow_empty = false);

/// Partitions by "parameters", "uniform" or "type:REGEX" (ECMAScript, any case; layers whose type() contains a match);
/// or by `bounds`, unless empty. Costs are parameters, 1 per layer, or 1 per matching layer. Errors: InputError for an
/// unknown method, an invalid expression, or one without a match.
Partition make_partition(const LayerList& layers, const std::string& method, const std::vector<int64_t>& bounds,
                         int64_t parts, bool allow_empty = false);

/// A table of layer, type, stage, parameters and cost, and the sums of each part. With chunks, part p is on stage p %
/// stages; `stages` 0: one part per stage.
std::string describe(const Partition& partition, const LayerList& layers, int stages = 0);

} // namespace trireme::pipeline
