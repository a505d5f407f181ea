#pragma once

#include <trireme/device/graph.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/skipped_steps.h>
#include <trireme/engine/step_clock.h>
#include <trireme/engine/step_outcome.h>
#include <trireme/engine/step_state.h>
#include <trireme/engine/unused_parameters.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace trireme::engine {

/// Ends a step: the ranks agree on loss, norm and loss scale, and then all step their buckets or all skip. The engine's
/// parts and state must outlive it.
///
/// On a GPU a step ends before the host knows its outcome, if nothing in it depends on that (GradientSync::
/// may_end_unknown()) and the step before was taken. settle() then counts it, a step later.
class OptimizerStep {
 public:
  OptimizerStep(const Parts& parts, StepState& state, StepClock& clock) : parts_(parts), state_(state), clock_(clock) {}

  /// The first gradient of backward for this micro-batch's loss: the loss scale over the number of micro-batches, in
  /// the loss's type and shape. On a GPU a dynamic scale is chosen there if the last step's outcome is not known.
  at::Tensor root_gradient(const at::Tensor& loss);
  /// Sends, before the last backward, the sum of this replica's losses of the step (float64, one element; undefined:
  /// 0), and whether the process was asked to stop. Backward hides the message. Call it once per step. On a GPU both
  /// are summed there, with the norm, and the hosts send nothing, unless buckets are stepped in backward.
  void send_loss(const at::Tensor& sum);
  bool loss_was_sent() const { return sent_; }
  /// For Reducer::on_bucket_final. Sends the bucket's gradients to the host if they are stepped there. Steps the bucket
  /// during backward if Parts::may_step_in_backward.
  void bucket_final(int64_t buffer, int64_t bucket);
  /// Learns the outcome of the last step, if it is not known: advances schedule and loss scale, or restores the counts
  /// of a skipped step. The host waits if the GPU has not come so far. Collective. Errors: Error after too many skipped
  /// steps.
  void settle();
  /// settle(); then applies a delayed update to the parameters, if there is one. Collective.
  void finish_delayed();
  /// Whether buckets of this step have been stepped.
  bool has_begun() const { return begun_; }
  /// Takes or skips the step. Call it after send_loss(). On a GPU, loss, norm and clip factor are computed there, and
  /// the kernels read from the factor whether to step. The host reads loss and norm while they run, or in the next
  /// step. Errors: InputError if ranks have different learning rates; those of settle().
  void run();
  /// Records the end of a step, from the norm to the optimizer, as a graph with this memory, if its kernels read what
  /// changes from step to step on the device. Otherwise it is launched kernel by kernel. For steps of one rank.
  void record_ends(std::unique_ptr<device::GraphPool> pool);
  /// A graph has left this step's gradients in their buffers, so run() may replay the end. Call it after send_loss().
  void replay_end() { replays_end_ = true; }
  /// Ends replayed so far.
  /// Drops the state of a step that ended, failed or was overwritten.
  void clear();
  /// A checkpoint was loaded.
  void start_over() {
    clear();
    unsettled_.reset();
    skipped_.start_over();
    ends_ = {};
  }

  /// Whether the next step's gradients are watched for the source of an overflow.
  bool watches_overflow() const { return skipped_.watches(); }

  void want_norm(bool on) { norm_wanted_ = on; }
  // Results of the last step; on a GPU, of the last one that is settled.
  bool stop_agreed() const { return agreed_.stop; }
  const std::shared_ptr<const StepOutcome>& outcome() const { return outcome_; }
  /// Skipped steps, the last one included even if it is not settled.
  int64_t skipped_steps() const { return state_.skipped_steps + (unsettled_ && !unsettled_->taken() ? 1 : 0); }

 private:
  // The sums that ranks exchange on their hosts when the gradients are complete.
  struct HostSums {
    UnusedParameters unused;
    at::Tensor sums; // squared norm, ranks that lack a gradient, lowered loss scales; undefined: not sent
    comm::Work message;
    double lacking = 0; // ranks

    UnusedParameters::Flags left_out() const { return unused.everywhere(lacking); }
  };

  // The end of a step as a graph. Between replays the host writes `loss` and `words`, and copies sums and factor.
  struct RecordedEnd {
    at::Tensor loss;       // sum of the micro-batches' losses, 0-dim, fp64
    at::Tensor words_here; // pinned; int32
    at::Tensor words;      // on the device: unscale() and rows of FlatOptimizer::step_scalars()
    StepOutcome::OnDevice on_device;
    std::unique_ptr<device::Graph> graph;

    at::Tensor unscale() const;
    at::Tensor rows() const;
  };

  bool has_end();
  bool record_end();
  void launch_end(RecordedEnd& end);
  void fill(const RecordedEnd& end) const;
  bool launch_recorded(HostSums& host);
  bool hosts_send() const;
  void send_to_ranks(double loss);
  void receive_loss();
  void check_split_gradients();
  at::Tensor squared_norm_here() const;
  HostSums send_sums(const at::Tensor& norm);
  bool agree_on_host(HostSums& host, bool has_norm);
  bool agree_on_scale(double lowered);
  bool agree_on_model(bool one_scale);
  bool launch(HostSums& host, const at::Tensor& norm, bool one_scale);
  at::Tensor sums_on_device(const HostSums& host, const at::Tensor& norm);
  void read_sums(const HostSums& host, device::ScalarsToHost& reading);
  bool leave_unsettled(HostSums& host, const StepOutcome::OnDevice& on_device, device::ScalarsToHost reading);
  template <typename Scale>
  at::Tensor factor_on_device(const at::Tensor& sums, bool has_norm, const Scale& unscale) const;
  double unscale() const;
  void begin(double grad_scale, const UnusedParameters::Flags& unused = {}, const at::Tensor& device_grad_scale = {},
             const at::Tensor& device_scalars = {});
  void prepare();
  void step_in_backward(int64_t buffer, int64_t bucket);
  template <typename F>
  void for_each_bucket(const F& f) const;
  void step_buckets();
  void step_bucket(int64_t buffer, int64_t bucket);
  void check_rates(double lr) const;
  void end_step(bool taken);
  void cancel(double lr_before);
  void count_taken();
  void count_skipped(const StepOutcome& outcome);
  StepOutcome::Settings settings() const;

  const Parts& parts_;
  StepState& state_;
  StepClock& clock_;
  SkippedSteps skipped_;
  bool sent_ = false;
  at::Tensor loss_;  // on a GPU; read there after the launch of the optimizer
  at::Tensor zeros_; // made once; parts of a step's sums
  at::Tensor loss_sums_;
  comm::Work loss_message_;
  parallel::LossAndNorm agreed_;
  std::shared_ptr<const StepOutcome> outcome_ =
      std::make_shared<StepOutcome>(StepOutcome::Settings(), StepOutcome::Values());
  std::shared_ptr<const StepOutcome> unsettled_; // the last step's, until settle()
  bool norm_wanted_ = false;
  double lr_ = 0;
  double lr_before_ = 0; // of the last step that was taken before this one
  bool begun_ = false;
  std::set<std::pair<int64_t, int64_t>> stepped_;  // buffer and bucket
  bool split_gradients_checked_ = false;           // in the first step
  std::unique_ptr<device::GraphPool> end_pool_;    // null: ends are not recorded
  std::array<std::optional<RecordedEnd>, 2> ends_; // without and with norm_wanted_
  bool replays_end_ = false;
};

} // namespace trireme::engine
