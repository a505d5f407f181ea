#pragma once

#include <trireme/optim/schedule.h>

#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::engine {

/// Reads the current learning rates of a torch optimizer's groups, so that torch::optim::StepLR and other schedulers
/// work as in a torch loop. lr() is the largest of them. Checkpoints do not contain them: after a load, step the
/// scheduler as often as before.
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
