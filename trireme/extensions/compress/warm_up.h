#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>

namespace trireme::compress {

/// Says after which step the second moments stay as they are: after a number of steps, or when they have settled, which
/// is when over 1/(1 - beta2) steps their 1-norm has changed by so little that the ratio of the smaller to the larger
/// is at least 0.96. Source of the rule: Tang et al. 2021, arXiv:2102.02888, section 7.1.
class WarmUp {
 public:
  static constexpr double kSettled = 0.96;

  /// `steps` absent: when they have settled.
  WarmUp(std::optional<int64_t> steps, double beta2);

  /// Whether it ends after `step`, the number of a step that was taken. `norm` gives the 1-norm of the second moments
  /// of the whole model, the same on every rank; it is called every 1/(1 - beta2) steps, if at all.
  bool ends_after(int64_t step, const std::function<double()>& norm);

  /// For checkpoints.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  std::optional<int64_t> steps_;
  int64_t between_; // steps between two norms
  double last_norm_ = 0;
};

} // namespace trireme::compress
