#pragma once

#include <trireme/device/host_scalars.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme::engine {

/// Loss, gradient norm and learning rate of one step, and whether it was taken.
///
/// On a GPU, Engine::step() returns before the GPU has computed them, and reading them waits until it has (one wait of
/// the host). Once the next step has ended they are here, so whoever keeps the outcome until then never waits. One
/// thread at a time.
class StepOutcome {
 public:
  struct Values {
    double loss = 0;
    /// Before clipping; absent if the step needed none.
    std::optional<double> grad_norm;
    /// False: the step was skipped, because loss or norm are not finite.
    bool taken = true;
    /// True if a rank was asked to stop before the step's sums were sent.
    bool stop = false;
  };
  /// What the host knows when it launches the step.
  struct Settings {
    int64_t step = 0;
    double lr = 0;
    /// Learning rate of the last step before it, which stays that of the last step if this one is skipped.
    double lr_before = 0;
    double loss_scale = 1;
  };
  /// Places in OnDevice::sums: the mean loss, the squared norm of the gradients as the Reducer leaves them, how many
  /// ranks were asked to stop, and how many ranks of this part of the model lack a gradient.
  enum Sum { kLoss, kSquaredNorm, kStop, kLacking, kSums };
  /// What a GPU computes.
  struct OnDevice {
    /// [kSums], fp64, the same on every rank.
    at::Tensor sums;
    /// [1], fp32: multiplies the gradients; NaN: the step is skipped.
    at::Tensor factor;
    bool has_norm = false;
    /// Turns the Reducer's result into the gradient of the step.
    double unscale = 1;
  };

  StepOutcome(const Settings& settings, const Values& values) : settings_(settings), values_(values) {}
  /// `reading` copies the sums to the host.
  StepOutcome(const Settings& settings, const OnDevice& on_device, device::ScalarsToHost reading);
  /// Waits until nothing is copied to the host any more.
  ~StepOutcome();
  StepOutcome(const StepOutcome&) = delete;
  StepOutcome& operator=(const StepOutcome&) = delete;

  /// The number of the step, from 1; 0 before the first.
  int64_t step() const { return settings_.step; }
  double loss_scale() const { return settings_.loss_scale; }
  /// Whether reading the others does not wait. Never waits itself.
  bool is_known() const;
  double loss() const { return values().loss; }
  const std::optional<double>& grad_norm() const { return values().grad_norm; }
  bool taken() const { return values().taken; }
  bool stop() const { return values().stop; }
  /// Learning rate of the last step that was taken.
  double lr() const { return taken() ? settings_.lr : settings_.lr_before; }
  /// The loss as a 0-dim fp64 tensor: on the GPU while the host does not know it. Never waits.
  at::Tensor loss_tensor() const;
  /// `taken` or `skipped`, whichever the step was: 0-dim, fp32, on the GPU. Does not wait. For steps of a GPU only.
  at::Tensor choose(double if_taken, double if_skipped) const;

 private:
  const Values& values() const;

  Settings settings_;
  mutable Values values_;
  OnDevice on_device_;
  mutable std::optional<device::ScalarsToHost> reading_; // until the values are known
};

} // namespace trireme::engine
