#include <trireme/parallel/pipeline/partition.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <numeric>
#include <regex>
#include <sstream>

namespace trireme::pipeline {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12; // of sums of costs

void check_parts(int64_t count, int64_t parts, bool allow_empty) {
  if (parts < 1) {
    throw InputError("pipeline", concat("the layers cannot be cut into ", parts, " parts"));
  }
  if (parts > count && !allow_empty) {
    throw InputError("pipeline", concat(count, count == 1 ? " layer" : " layers", " cannot fill ", parts, " stages"),
                     "Use fewer stages or chunks, or set allow_empty_stages: the surplus ones only pass on what they get.");
  }
}

// Sums of consecutive costs.
class Sums {
 public:
  explicit Sums(const std::vector<double>& costs) : prefix_(costs.size() + 1, 0.0) {
    std::partial_sum(costs.begin(), costs.end(), prefix_.begin() + 1);
  }
  double operator()(int64_t begin, int64_t end) const {
    return prefix_[end] - prefix_[begin];
  }

 private:
  std::vector<double> prefix_;
};

// For every number of parts k and prefix i, the smallest maximum of k parts, none of them empty: table[k][i].
double smallest_maximum(const Sums& sum, int64_t count, int64_t parts) {
  std::vector<double> best(count + 1, kInfinity);
  best[0] = 0;
  for (int64_t part = 1; part <= parts; ++part) {
    for (int64_t end = count; end >= 0; --end) { // downwards: best[begin] is still that of part - 1
      double least = kInfinity;
      for (int64_t begin = end - 1; begin >= part - 1 && sum(begin, end) < least; --begin) {
        least = std::min(least, std::max(best[begin], sum(begin, end)));
      }
      best[end] = least;
    }
  }
  return best[count];
}

double largest_minimum(const Sums& sum, int64_t count, int64_t parts, double cap) {
  std::vector<double> best(count + 1, -kInfinity);
  best[0] = kInfinity;
  for (int64_t part = 1; part <= parts; ++part) {
    for (int64_t end = count; end >= 0; --end) {
      double most = -kInfinity;
      for (int64_t begin = end - 1; begin >= part - 1 && sum(begin, end) <= cap; --begin) {
        most = std::max(most, std::min(best[begin], sum(begin, end)));
      }
      best[end] = most;
    }
  }
  return best[count];
}

// The earliest boundaries whose parts all cost between floor and cap.
std::vector<int64_t> earliest(const Sums& sum, int64_t count, int64_t parts, double floor, double cap) {
  const auto fits = [&](int64_t begin, int64_t end) { return sum(begin, end) >= floor && sum(begin, end) <= cap; };
  // possible[k][i]: layers [i, count) can be cut into k parts.
  std::vector<std::vector<bool>> possible(parts + 1, std::vector<bool>(count + 1, false));
  possible[0][count] = true;
  for (int64_t part = 1; part <= parts; ++part) {
    for (int64_t begin = 0; begin < count; ++begin) {
      for (int64_t end = begin + 1; end <= count && sum(begin, end) <= cap && !possible[part][begin]; ++end) {
        possible[part][begin] = possible[part - 1][end] && fits(begin, end);
      }
    }
  }
  std::vector<int64_t> bounds = {0};
  for (int64_t left = parts; left > 0; --left) {
    int64_t end = bounds.back() + 1;
    while (!possible[left - 1][end] || !fits(bounds.back(), end)) {
      ++end;
    }
    bounds.push_back(end);
  }
  return bounds;
}

std::vector<double> parameter_costs(const LayerList& layers) {
  std::vector<double> costs;
  for (const Layer& layer : layers) {
    costs.push_back(static_cast<double>(layer.trainable_parameters()));
  }
  return costs;
}

std::vector<double> match_costs(const LayerList& layers, const std::string& text) {
  std::regex regex;
  try {
    regex = std::regex(text, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    throw InputError("pipeline", concat("partition \"type:", text, "\": the regular expression is wrong: ", error.what()));
  }
  std::vector<double> costs;
  std::vector<std::string> types;
  for (const Layer& layer : layers) {
    costs.push_back(std::regex_search(layer.type(), regex) ? 1 : 0);
    if (std::find(types.begin(), types.end(), layer.type()) == types.end()) {
      types.push_back(layer.type());
    }
  }
  if (std::find(costs.begin(), costs.end(), 1.0) == costs.end()) {
    throw InputError("pipeline", concat("partition \"type:", text, "\" matches no layer."), "Their types are: " + join(types, ", ") + ".");
  }
  return costs;
}

// "1 234 567": five digits and more are hard to read otherwise.
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

std::vector<int64_t> balance(const std::vector<double>& costs, int64_t parts, bool allow_empty) {
  const auto count = static_cast<int64_t>(costs.size());
  check_parts(count, parts, allow_empty);
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(costs[i]) || costs[i] < 0) {
      throw InputError("pipeline", concat("layer ", i, " costs ", costs[i], "; costs to balance are 0 or more"));
    }
  }
  if (parts >= count) {
    return uniform(count, parts, allow_empty);
  }
  const Sums sum(costs);
  const double maximum = smallest_maximum(sum, count, parts);
  const double rounding = kRounding * maximum;
  const double minimum = largest_minimum(sum, count, parts, maximum + rounding);
  return earliest(sum, count, parts, minimum - rounding, maximum + rounding);
}

std::vector<int64_t> uniform(int64_t count, int64_t parts, bool allow_empty) {
  check_parts(count, parts, allow_empty);
  std::vector<int64_t> bounds = {0};
  for (int64_t part = 0; part < parts; ++part) {
    bounds.push_back(bounds.back() + count / parts + (part < count % parts ? 1 : 0));
  }
  return bounds;
}

std::vector<int64_t> by_type(const LayerList& layers, const std::string& regex, int64_t parts, bool allow_empty) {
  return balance(match_costs(layers, regex), parts, allow_empty);
}

std::vector<int64_t> manual(const std::vector<int64_t>& bounds, int64_t count, int64_t parts, bool allow_empty) {
  check_parts(count, parts, allow_empty);
  const auto refuse = [&](const std::string& what) {
    std::vector<std::string> numbers;
    for (const int64_t bound : bounds) {
      numbers.push_back(std::to_string(bound));
    }
    throw InputError("pipeline", concat("partition [", join(numbers, ", "), "] of ", count, " layers into ", parts, ": ", what),
                     "Give the first layer of every part and, at the end, the number of layers.");
  };
  if (static_cast<int64_t>(bounds.size()) != parts + 1) {
    refuse(concat("it has ", bounds.size(), " numbers, not ", parts + 1));
  }
  if (bounds.front() != 0) {
    refuse(concat("it begins with ", bounds.front(), ", not 0"));
  }
  for (size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] < bounds[i - 1] || (bounds[i] == bounds[i - 1] && !allow_empty)) {
      refuse(concat("it does not increase: ", bounds[i - 1], " is followed by ", bounds[i]));
    }
  }
  if (bounds.back() != count) {
    refuse(concat("it ends with ", bounds.back(), ", not ", count));
  }
  return bounds;
}

Partition balance_costs(std::vector<double> costs, int64_t parts, bool allow_empty) {
  std::vector<int64_t> bounds = balance(costs, parts, allow_empty);
  return {std::move(bounds), std::move(costs)};
}

Partition make_partition(const LayerList& layers, const std::string& method, const std::vector<int64_t>& bounds, int64_t parts,
                         bool allow_empty) {
  constexpr std::string_view kType = "type:";
  if (!bounds.empty()) {
    return {manual(bounds, layers.size(), parts, allow_empty), parameter_costs(layers)};
  }
  if (method == "parameters") {
    return balance_costs(parameter_costs(layers), parts, allow_empty);
  }
  if (method == "uniform") {
    return {uniform(layers.size(), parts, allow_empty), std::vector<double>(layers.size(), 1.0)};
  }
  if (method.compare(0, kType.size(), kType) == 0) {
    return balance_costs(match_costs(layers, method.substr(kType.size())), parts, allow_empty);
  }
  throw InputError("pipeline", concat("there is no partition \"", method, "\"."),
                   did_you_mean(method, {"parameters", "uniform", "type:REGEX", "profile", "memory"}));
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
    const std::string which = begin == end ? "none" : begin + 1 == end ? std::to_string(begin) : concat(begin, " to ", end - 1);
    sums.push_back({stage, which, grouped(parameters), cost_text(cost)});
  }
  return table(rows) + '\n' + table(sums);
}

} // namespace trireme::pipeline
