#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>

namespace trireme::compress {

/// Decides after which step the second moments are frozen: after a number of steps, or when they have settled. They
/// have settled if their 1-norms before and after 1/(1 - beta2) steps have a ratio of at least 0.96, the smaller to the
/// larger. Source of the rule: Tang et al. 2021, arXiv:2102.02888, section 7.1.
class WarmUp {
 public:
  static constexpr double kSettled = 0.96;

  /// `steps` absent: ends when the second moments have settled.
  WarmUp(std::optional<int64_t> steps, double beta2);

  /// True if the warm-up ends after `step`, the number of a step that was taken. `norm` returns the 1-norm of the whole
  /// model's second moments, the same on every rank. It is called at most every 1/(1 - beta2) steps.
  bool ends_after(int64_t step, const std::function<double()>& norm);

  /// Returns the state for checkpoints.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  std::optional<int64_t> steps_;
  int64_t between_; // steps between two norms
  double last_norm_ = 0;
};

} // namespace trireme::compress
