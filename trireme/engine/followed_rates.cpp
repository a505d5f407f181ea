#include <trireme/engine/followed_rates.h>

#include <trireme/base/error.h>

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>

namespace trireme::engine {
namespace {

// The lr of each group.
std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
    if (!(rates.back() >= 0) || !std::isfinite(rates.back())) {
      throw InputError("engine", concat("group ", rates.size() - 1, " of the torch optimizer has lr ", rates.back()),
                       "Set a learning rate of 0 or more.");
    }
  }
  return rates;
}

} // namespace

double FollowedRates::lr_of(int64_t) const {
  return std::ranges::max(rates_of(*optimizer_));
}

std::vector<double> FollowedRates::group_factors() const {
  std::vector<double> factors = rates_of(*optimizer_);
  const double largest = std::ranges::max(factors);
  for (double& factor : factors) {
    factor = largest > 0 ? factor / largest : 1;
  }
  return factors;
}

void FollowedRates::set_lr(double) {
  throw InputError(
      "engine", "set_lr() has no effect with a torch optimizer, which sets the lr",
      "Set the lr of that optimizer's groups, group.options().set_lr(), or let a torch::optim::LRScheduler do it.");
}

} // namespace trireme::engine
