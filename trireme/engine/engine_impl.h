#pragma once

#include <trireme/base/error.h>
#include <trireme/engine/arrivals.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/optimizer_step.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/replica_mean.h>
#include <trireme/engine/step_clock.h>
#include <trireme/engine/step_graph.h>
#include <trireme/engine/step_report.h>
#include <trireme/engine/step_state.h>

#include <array>
#include <memory>
#include <vector>

namespace trireme::engine {

/// The parts of an engine, its position, and the state of the current step. Private to this folder.
class Engine::Impl {
 public:
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Parts built; // built by initialize(), stage by stage
  const Parts& parts = built;
  StepState state;
  StepClock clock{[this] { return parts.exposed_seconds(); }};
  OptimizerStep optimizer_step{parts, state, clock};
  std::unique_ptr<StepGraph> graph; // null: steps are launched one by one
  std::optional<StepReport> report; // rank 0
  std::optional<Arrivals> arrivals;

  /// Sum of losses over samples, or over targets that count if not all do.
  struct LossSum {
    at::Tensor loss;   ///< float64 on the device; undefined: 0
    double weight = 0; ///< of the losses: samples, or targets
    double samples = 0;
    /// Adds the mean of a micro-batch, whose loss_weight is set for it.
    void add(const at::Tensor& mean, const data::Batch& micro_batch);
  };

  bool at_boundary() const { return state.at_boundary(parts.settings.batch.accumulation); }
  bool in_the_middle_of_a_step() const { return state.micro_steps % parts.settings.batch.accumulation != 0; }
  /// Loads the next micro-batch as part of the step.
  data::Batch load(const std::function<data::Batch()>& next);
  at::Tensor forward(const data::Batch& micro_batch);
  void backward(const at::Tensor& loss);
  void step();
  void zero_grad();
  /// Runs all micro-batches of a step, by a graph once it is recorded. Calls `end_micro_batch` after each backward.
  void run_with_graph(const std::function<data::Batch()>& next, const std::function<void()>& end_micro_batch);
  /// Runs all micro-batches of a step as a pipeline, up to reduced gradients.
  void run_pipeline(const std::function<data::Batch()>& next);
  /// Runs a part of a step. An exception ends the step: a single rank drops it, and the next micro-batch is its first.
  /// With several ranks it ends their groups too, because the others wait for this one.
  template <typename F>
  void drop_on_failure(const F& part) {
    try {
      part();
    } catch (const PeerError&) {
      throw; // no rank continues
    } catch (const std::exception& error) {
      drop_step(error.what());
      throw;
    } catch (...) {
      drop_step("an exception");
      throw;
    }
  }
  /// Drops the state of a step that ended, failed or was overwritten; the next micro-batch is the first of a step.
  void clear_step();
  /// Counts the steps up to `step` that others have made, and skips their samples.
  void skip_to(int64_t step);
  /// Marks the parameters as being of different steps until whole_again(); only a checkpoint repairs that.
  void torn_by(const std::string& reason) { torn_ = reason; }
  void whole_again() { torn_.clear(); }
  /// Errors: Error after a step that ended the ranks' groups.
  void check_usable() const;
  /// Errors as check_usable(), and if some parameters are a step ahead of others, permanently or until step().
  void check_whole(const char* wanted) const;
  /// Errors: InputError if results of gather_parameters() are alive: the step would not update them.
  void check_released() const;
  /// Copies module buffers from the first replica, and from its first tensor rank where tensor ranks have them whole,
  /// if they may differ. Replicas that step separately keep theirs until they are averaged. Collective.
  void broadcast_module_buffers();
  /// If replicas differ now, makes this rank's model their mean during the lifetime of the result; else null.
  /// Collective.
  std::shared_ptr<ReplicaMean> replica_mean();

  /// Adds the logits of the last micro-batch to `logits` unless it is null.
  void evaluate(const data::Batch& micro_batch, LossSum& sum, pipeline::Tensors* logits = nullptr);
  int64_t batches_to_evaluate(data::DataLoader& loader) const;
  static void next_or_padding(data::DataLoader& loader, data::Batch& batch);
  LossSum evaluate_together(data::DataLoader& loader, int64_t max_batches);
  void evaluate_pipeline(int64_t micro_batches, const std::function<data::Batch()>& next, LossSum& sum,
                         pipeline::Tensors* logits = nullptr);
  double mean_over_ranks(const LossSum& sum) const;

 private:
  void start_step();
  void begin_forward();
  void run_backward(const at::Tensor& loss, bool last, const std::function<at::Tensor()>& root_gradient);
  at::Tensor launch_step(const StepInputs& inputs);
  bool replay_step(const std::vector<data::Batch>& batches);
  void drop_step(const char* why) noexcept;

  at::Tensor loss_sum_;    // sum over this step's micro-batches, float64 on the device; undefined: 0
  bool in_step_ = false;   // since the first micro-batch
  bool went_back_ = false; // backward() or the pipeline has run for the micro-batch
  std::array<bool, 2> module_buffers_differ_ = {
      true, true}; // of Parts::module_buffers: a forward may have changed them since they were broadcast
  std::weak_ptr<ReplicaMean> replica_mean_;
  std::string failure_; // the step on several ranks that failed and ended their groups
  std::string torn_;
};

} // namespace trireme::engine
