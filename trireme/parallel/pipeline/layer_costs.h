#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// What a partition that measures nothing needs to know of a layer.
struct LayerSize {
  std::string type; ///< its class
  int64_t parameters = 0;
};

/// What the partition `method` balances, for each layer: "parameters"; "uniform", their number; "type:REGEX", the
/// layers whose class has a match. Errors: InputError for another method, for a wrong expression, and for one that
/// matches no layer.
std::vector<double> layer_costs(const std::vector<LayerSize>& layers, const std::string& method);

/// The boundaries that follow: balance() of the costs, but uniform() for "uniform".
std::vector<int64_t> partition_bounds(const std::vector<double>& costs, const std::string& method, int64_t parts,
                                      bool allow_empty = false);

} // namespace trireme::pipeline
