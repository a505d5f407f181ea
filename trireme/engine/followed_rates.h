#pragma once

#include <trireme/optim/schedule.h>

#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::engine {

/// The learning rates that a torch optimizer's groups have now, so that torch::optim::StepLR and the like work on it as
/// they do in a torch loop. lr() is the largest of them. A checkpoint does not have them: after a load, step the
/// scheduler as often as it had been stepped.
class FollowedRates final : public optim::Schedule {
 public:
  explicit FollowedRates(std::shared_ptr<const torch::optim::Optimizer> optimizer) : optimizer_(std::move(optimizer)) {}

  const char* name() const override {
    return "Constant"; // unless the program changes them
  }
  std::vector<double> group_factors() const override;
  void set_lr(double lr) override;

 private:
  double lr_of(int64_t iteration) const override;

  std::shared_ptr<const torch::optim::Optimizer> optimizer_;
};

} // namespace trireme::engine
