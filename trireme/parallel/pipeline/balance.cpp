#include <trireme/parallel/pipeline/balance.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace trireme::pipeline {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12; // error of sums of costs

void check_parts(int64_t count, int64_t parts, bool allow_empty) {
  if (parts < 1) {
    throw InputError("pipeline", concat("the layers cannot be cut into ", parts, " parts"));
  }
  if (parts > count && !allow_empty) {
    throw InputError("pipeline", concat(count, count == 1 ? " layer" : " layers", " cannot fill ", parts, " stages"),
                     "Use fewer stages or chunks.");
  }
}

// Sums of consecutive costs, per part.
class Sums {
 public:
  explicit Sums(const std::vector<std::vector<double>>& costs) {
    for (const std::vector<double>& row : costs) {
      prefix_.emplace_back(row.size() + 1, 0.0);
      std::partial_sum(row.begin(), row.end(), prefix_.back().begin() + 1);
    }
  }
  double operator()(int64_t part, int64_t begin, int64_t end) const {
    return prefix_[part][end] - prefix_[part][begin];
  }

 private:
  std::vector<std::vector<double>> prefix_;
};

// For every number of parts k and prefix i, the smallest maximum of the first k parts, none of them empty: table[k][i].
double smallest_maximum(const Sums& sum, int64_t count, int64_t parts) {
  std::vector<double> best(count + 1, kInfinity);
  best[0] = 0;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t end = count; end >= 0; --end) { // downwards: best[begin] is still that of part - 1
      double least = kInfinity;
      for (int64_t begin = end - 1; begin >= part && sum(part, begin, end) < least; --begin) {
        least = std::min(least, std::max(best[begin], sum(part, begin, end)));
      }
      best[end] = least;
    }
  }
  return best[count];
}

double largest_minimum(const Sums& sum, int64_t count, int64_t parts, double cap) {
  std::vector<double> best(count + 1, -kInfinity);
  best[0] = kInfinity;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t end = count; end >= 0; --end) {
      double most = -kInfinity;
      for (int64_t begin = end - 1; begin >= part && sum(part, begin, end) <= cap; --begin) {
        most = std::max(most, std::min(best[begin], sum(part, begin, end)));
      }
      best[end] = most;
    }
  }
  return best[count];
}

// The earliest boundaries whose parts all cost between floor and cap.
std::vector<int64_t> earliest(const Sums& sum, int64_t count, int64_t parts, double floor, double cap) {
  const auto fits = [&](int64_t part, int64_t begin, int64_t end) {
    return sum(part, begin, end) >= floor && sum(part, begin, end) <= cap;
  };
  // possible[k][i]: layers [i, count) can be cut into the last k parts.
  std::vector<std::vector<bool>> possible(parts + 1, std::vector<bool>(count + 1, false));
  possible[0][count] = true;
  for (int64_t left = 1; left <= parts; ++left) {
    const int64_t part = parts - left;
    for (int64_t begin = 0; begin < count; ++begin) {
      for (int64_t end = begin + 1; end <= count && sum(part, begin, end) <= cap && !possible[left][begin]; ++end) {
        possible[left][begin] = possible[left - 1][end] && fits(part, begin, end);
      }
    }
  }
  std::vector<int64_t> bounds = {0};
  for (int64_t part = 0; part < parts; ++part) {
    int64_t end = bounds.back() + 1;
    while (!possible[parts - part - 1][end] || !fits(part, bounds.back(), end)) {
      ++end;
    }
    bounds.push_back(end);
  }
  return bounds;
}

void check_costs(const std::vector<double>& costs) {
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!std::isfinite(costs[i]) || costs[i] < 0) {
      throw InputError("pipeline", concat("layer ", i, " costs ", costs[i], "; costs to balance are 0 or more"));
    }
  }
}

} // namespace

std::vector<int64_t> balance_by_part(const std::vector<std::vector<double>>& costs, bool allow_empty) {
  const auto parts = std::ssize(costs);
  const int64_t count = costs.empty() ? 0 : std::ssize(costs.front());
  check_parts(count, parts, allow_empty);
  for (const std::vector<double>& row : costs) {
    check_costs(row);
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

std::vector<int64_t> balance(const std::vector<double>& costs, int64_t parts, bool allow_empty) {
  const auto count = std::ssize(costs);
  check_parts(count, parts, allow_empty);
  check_costs(costs);
  return parts >= count ? uniform(count, parts, allow_empty)
                        : balance_by_part(std::vector(static_cast<size_t>(parts), costs), allow_empty);
}

std::vector<int64_t> uniform(int64_t count, int64_t parts, bool allow_empty) {
  check_parts(count, parts, allow_empty);
  std::vector<int64_t> bounds = {0};
  for (int64_t part = 0; part < parts; ++part) {
    bounds.push_back(bounds.back() + count / parts + (part < count % parts ? 1 : 0));
  }
  return bounds;
}

std::vector<int64_t> manual(const std::vector<int64_t>& bounds, int64_t count, int64_t parts, bool allow_empty) {
  check_parts(count, parts, allow_empty);
  const auto refuse = [&](const std::string& what) {
    std::vector<std::string> numbers;
    for (const int64_t bound : bounds) {
      numbers.push_back(std::to_string(bound));
    }
    throw InputError("pipeline",
                     concat("partition [", join(numbers, ", "), "] of ", count, " layers into ", parts, ": ", what),
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

} // namespace trireme::pipeline
