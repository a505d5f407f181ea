#include <trireme/comm/algorithms/cost.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <bit>

namespace trireme::comm {

const std::vector<Algorithm>& all_algorithms() {
  static const std::vector<Algorithm> all = {Algorithm::ring, Algorithm::tree, Algorithm::halving_doubling,
                                             Algorithm::naive};
  return all;
}

const char* name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring:
      return "ring";
    case Algorithm::tree:
      return "tree";
    case Algorithm::halving_doubling:
      return "halving-doubling";
    case Algorithm::naive:
      return "naive";
  }
  return "?";
}

Algorithm algorithm_named(const std::string& wanted) {
  std::vector<std::string> names;
  for (const Algorithm algorithm : all_algorithms()) {
    if (wanted == name(algorithm)) {
      return algorithm;
    }
    names.emplace_back(name(algorithm));
  }
  throw InputError("comm", concat("unknown all-reduce algorithm \"", wanted, "\"."),
                   concat("Known: ", join(names, ", "), "."));
}

Cost cost(Algorithm algorithm, int ranks, int64_t bytes) {
  if (ranks < 2) {
    return {};
  }
  const auto n = static_cast<double>(ranks);
  const auto whole = static_cast<double>(bytes);
  switch (algorithm) {
    case Algorithm::ring:
      return {2 * (ranks - 1), 2 * whole * (n - 1) / n};
    case Algorithm::tree: {
      const int rounds = std::bit_width(static_cast<unsigned>(ranks - 1));
      return {2 * rounds, whole * rounds};
    }
    case Algorithm::halving_doubling: {
      const auto power = std::bit_floor(static_cast<unsigned>(ranks));
      const bool folds = power != static_cast<unsigned>(ranks);
      const int rounds = std::bit_width(power) - 1;
      const double p = power;
      return {2 * rounds + (folds ? 2 : 0), 2 * whole * (p - 1) / p + (folds ? whole : 0)};
    }
    case Algorithm::naive:
      return {2 * (ranks - 1), whole * (n - 1)};
  }
  return {};
}

} // namespace trireme::comm
