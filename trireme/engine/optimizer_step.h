#pragma once

#include <trireme/engine/parts.h>
#include <trireme/engine/skipped_steps.h>
#include <trireme/engine/step_clock.h>
#include <trireme/engine/step_state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace trireme::engine {

/// Ends a step: the ranks agree on loss, norm and loss scale, and either all step their buckets or all skip. The parts
/// of an engine and its state must outlive it.
class OptimizerStep {
 public:
  OptimizerStep(const Parts& parts, StepState& state, StepClock& clock) : parts_(parts), state_(state), clock_(clock) {}

  /// Takes the sum of this replica's losses of the step (float64, one element; undefined: 0) before the last backward,
  /// which hides the message with it and with whether the process was asked to stop. Once a step. A loss on a GPU stays
  /// there until the optimizer's kernels are launched, unless buckets are stepped in backward.
  void send_loss(const at::Tensor& sum);
  bool loss_was_sent() const {
    return sent_;
  }
  /// For Reducer::on_bucket_final: sends the bucket's gradients to the host if it is stepped there, and steps it while
  /// backward goes on, where Parts::may_step_in_backward.
  void bucket_final(int64_t buffer, int64_t bucket);
  /// With a delayed update: what a thread has stepped comes to the parameters. Collective. Nothing happens if nothing
  /// is under way.
  void finish_delayed();
  /// Whether buckets of this step are stepped already.
  bool has_begun() const {
    return begun_;
  }
  /// Takes or skips the step. On a GPU loss, norm and clip factor come about there, and the kernels find in the factor
  /// whether there is a step at all; the host waits for loss and norm once, while they run. Call it after send_loss().
  /// Errors: InputError where the ranks have different learning rates; Error after too many skipped steps.
  void run();
  /// Forgets what there is of a step that ended, failed or was overwritten.
  void clear();
  /// A checkpoint was loaded.
  void start_over() {
    clear();
    skipped_.start_over();
  }

  void want_norm(bool on) {
    norm_wanted_ = on;
  }
  // Results of the last step.
  double mean_loss() const {
    return mean_loss_;
  }
  bool stop_agreed() const {
    return stop_agreed_;
  }
  double lr() const {
    return lr_;
  }
  const std::optional<double>& grad_norm() const {
    return grad_norm_;
  }

 private:
  using Unused = std::vector<std::vector<bool>>; // by buffer and parameter

  void send_to_ranks(double loss);
  void receive_loss();
  Unused unused_here() const;
  Unused unused_everywhere(Unused unused, double ranks_that_lack_some) const;
  bool agree_on_scale(double lowered);
  void check_split_gradients();
  bool agree_on_model(double& squared_norm, bool one_scale);
  at::Tensor agree_on_device(const at::Tensor& norm);
  at::Tensor factor_on_device(const at::Tensor& loss_and_norm, bool has_norm, double unscale) const;
  void begin(double grad_scale, const Unused& unused = {}, const at::Tensor& device_grad_scale = {});
  void step_in_backward(int64_t buffer, int64_t bucket);
  template <typename F>
  void for_each_bucket(const F& f) const;
  void step_buckets();
  void step_bucket(int64_t buffer, int64_t bucket);
  void check_rates(double lr) const;
  void end_step(bool taken);
  void skip();

  const Parts& parts_;
  StepState& state_;
  StepClock& clock_;
  SkippedSteps skipped_;
  bool sent_ = false;
  at::Tensor loss_; // on a GPU, where it is read after the launch of the optimizer
  at::Tensor loss_sums_;
  comm::Work loss_message_;
  double mean_loss_ = 0;
  bool stop_agreed_ = false;
  std::optional<double> grad_norm_;
  bool norm_wanted_ = false;
  double lr_ = 0;
  bool begun_ = false;
  std::set<std::pair<int64_t, int64_t>> stepped_; // buffer and bucket
  bool split_gradients_checked_ = false;          // in the first step
};

} // namespace trireme::engine
