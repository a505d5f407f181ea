#include <trireme/engine/same_rates.h>

#include <trireme/base/error.h>

#include <torch/types.h>

#include <cmath>

namespace trireme::engine {

void check_same_rates(const comm::Group& ranks, const std::vector<double>& rates, const std::string& where) {
  if (ranks.size() == 1) {
    return;
  }
  std::vector<double> numbers; // the largest of each, and the smallest negated
  for (const double rate : rates) {
    const bool is_number = !std::isnan(rate); // a maximum may ignore NaN
    numbers.insert(numbers.end(), {is_number ? rate : HUGE_VAL, is_number ? -rate : HUGE_VAL});
  }
  at::Tensor most = torch::tensor(numbers, torch::kFloat64);
  ranks.all_reduce(most, comm::ReduceOp::max, "learning rates").wait();
  for (size_t i = 0; i < rates.size(); ++i) {
    const double largest = most[static_cast<int64_t>(2 * i)].item<double>();
    const double smallest = -most[static_cast<int64_t>(2 * i) + 1].item<double>();
    const double apart = largest - smallest;
    if (largest != smallest && (!std::isfinite(apart) || apart > 1e-9 * std::abs(largest))) {
      throw InputError("engine",
                       concat("the ranks have different learning rates in ", where,
                              rates.size() > 1 ? concat(", of parameter group ", i) : "", ": from ", smallest, " to ",
                              largest, ", here ", rates[i]),
                       "Compute it from values that are equal on every rank: the loss that train_batch() returns, or "
                       "engine->loss(), not a rank's own loss.");
    }
  }
}

} // namespace trireme::engine
