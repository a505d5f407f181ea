#include <trireme/parallel/pipeline/partition.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/pipeline/layer_costs.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace trireme::pipeline {
namespace {

std::vector<LayerSize> sizes_of(const LayerList& layers) {
  std::vector<LayerSize> sizes;
  for (const Layer& layer : layers) {
    sizes.push_back({layer.type(), layer.trainable_parameters()});
  }
  return sizes;
}

// "1 234 567": groups the digits of numbers with five or more.
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ' ');
  }
  return digits;
}

std::string cost_text(double cost) {
  if (cost == std::floor(cost) && cost < 1e15) {
    return grouped(static_cast<int64_t>(cost));
  }
  std::ostringstream out;
  out << std::setprecision(4) << cost;
  return out.str();
}

using Row = std::vector<std::string>;

// Text to the left, numbers (from column 2 on) to the right.
std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t gap = widths[i] - row[i].size();
      line.append(i == 0 ? 0 : 2, ' ');
      line.append(i < 2 ? 0 : gap, ' ').append(row[i]).append(i < 2 ? gap : 0, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

} // namespace

Partition balance_costs_by_part(const std::vector<std::vector<double>>& costs, bool allow_empty) {
  Partition partition{balance_by_part(costs, allow_empty), {}};
  for (size_t part = 0; part < costs.size(); ++part) {
    for (int64_t i = partition.bounds[part]; i < partition.bounds[part + 1]; ++i) {
      partition.costs.push_back(costs[part][i]);
    }
  }
  return partition;
}

Partition balance_costs(std::vector<double> costs, int64_t parts, bool allow_empty) {
  std::vector<int64_t> bounds = balance(costs, parts, allow_empty);
  return {std::move(bounds), std::move(costs)};
}

Partition make_partition(const LayerList& layers, const std::string& method, const std::vector<int64_t>& bounds,
                         int64_t parts, bool allow_empty) {
  if (!bounds.empty()) {
    return {manual(bounds, layers.size(), parts, allow_empty), layer_costs(sizes_of(layers), "parameters")};
  }
  std::vector<double> costs = layer_costs(sizes_of(layers), method);
  std::vector<int64_t> cuts = partition_bounds(costs, method, parts, allow_empty);
  return {std::move(cuts), std::move(costs)};
}

std::string describe(const Partition& partition, const LayerList& layers, int stages) {
  const int64_t stage_count = stages > 0 ? stages : partition.parts();
  std::vector<Row> rows = {{"layer", "type", "stage", "parameters", "cost"}};
  std::vector<Row> sums = {{"stage", "layers", "parameters", "cost"}};
  for (int64_t part = 0; part < partition.parts(); ++part) {
    const int64_t begin = partition.bounds[part];
    const int64_t end = partition.bounds[part + 1];
    const std::string stage = std::to_string(part % stage_count);
    int64_t parameters = 0;
    double cost = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t own = layers[i].trainable_parameters();
      const auto& name = layers[i].name();
      const std::string label = name ? concat(i, ' ', *name) : std::to_string(i);
      rows.push_back({label, layers[i].type(), stage, grouped(own), cost_text(partition.costs[i])});
      parameters += own;
      cost += partition.costs[i];
    }
    const std::string which = begin == end       ? "none"
                              : begin + 1 == end ? std::to_string(begin)
                                                 : concat(begin, " to ", end - 1);
    sums.push_back({stage, which, grouped(parameters), cost_text(cost)});
  }
  return table(rows) + '\n' + table(sums);
}

} // namespace trireme::pipeline
