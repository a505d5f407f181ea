#pragma once

#include <trireme/base/error.h>
#include <trireme/engine/arrivals.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/optimizer_step.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/replica_mean.h>
#include <trireme/engine/step_clock.h>
#include <trireme/engine/step_report.h>
#include <trireme/engine/step_state.h>

#include <array>

namespace trireme::engine {

/// The parts of an engine, where it is, and what a step still lacks; private to this folder.
class Engine::Impl {
 public:
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Parts built; // by initialize(), stage by stage
  const Parts& parts = built;
  StepState state;
  StepClock clock{[this] { return parts.exposed_seconds(); }};
  OptimizerStep optimizer_step{parts, state, clock};
  std::optional<StepReport> report; // rank 0
  std::optional<Arrivals> arrivals;

  /// Sum of losses over samples.
  struct LossSum {
    at::Tensor loss; ///< float64 on the device; undefined: 0
    double samples = 0;
  };

  bool at_boundary() const {
    return state.at_boundary(parts.settings.batch.accumulation);
  }
  bool in_the_middle_of_a_step() const {
    return state.micro_steps % parts.settings.batch.accumulation != 0;
  }
  /// The next micro-batch, as a part of the step.
  data::Batch load(const std::function<data::Batch()>& next);
  at::Tensor forward(const data::Batch& micro_batch);
  void backward(const at::Tensor& loss);
  void step();
  void zero_grad();
  /// All micro-batches of a step as a pipeline, up to reduced gradients.
  void run_pipeline(const std::function<data::Batch()>& next);
  /// Runs a part of a step. An exception ends the whole step: one rank drops what there is of it, and the next
  /// micro-batch is its first; of several ranks, the others wait for this one, so their groups end too.
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
  /// Forgets what there is of a step that ended, failed or was overwritten: the next micro-batch is a first one.
  void clear_step();
  /// Counts steps that others have made, up to `step`, and leaves out their samples.
  void skip_to(int64_t step);
  /// Says that parameters are not of one step, until whole_again(): only a checkpoint brings them together.
  void torn_by(const std::string& reason) {
    torn_ = reason;
  }
  void whole_again() {
    torn_.clear();
  }
  /// Errors: Error after a step that ended the ranks' groups.
  void check_usable() const;
  /// Also where some parameters are a step ahead of others, for good or until step().
  void check_whole(const char* wanted) const;
  /// The step would leave what gather_parameters() holds behind. Errors: InputError.
  void check_released() const;
  /// Makes module buffers those of the first replica, and of its first tensor rank where these have them whole, if they
  /// may differ. Replicas that step alone keep theirs until they meet. Collective.
  void broadcast_module_buffers();
  /// Where replicas differ now, makes this rank's model their mean while the result lives; else null. Collective.
  std::shared_ptr<ReplicaMean> replica_mean();

  /// `logits`: where those of the last micro-batch go, if they are wanted.
  void evaluate(const data::Batch& micro_batch, LossSum& sum, pipeline::Tensors* logits = nullptr);
  int64_t batches_to_evaluate(data::DataLoader& loader) const;
  static void next_or_padding(data::DataLoader& loader, data::Batch& batch);
  LossSum evaluate_together(data::DataLoader& loader, int64_t max_batches);
  void evaluate_pipeline(int64_t micro_batches, const std::function<data::Batch()>& next, LossSum& sum,
                         pipeline::Tensors* logits = nullptr);
  double mean_over_ranks(const LossSum& sum) const;

 private:
  void start_step();
  void drop_step(const char* why) noexcept;

  at::Tensor loss_sum_;    // of this step's micro-batches, float64 on the device; undefined: 0
  bool in_step_ = false;   // from the first micro-batch on
  bool went_back_ = false; // the micro-batch, by backward() or as a pipeline
  std::array<bool, 2> module_buffers_differ_ = {
      true, true}; // of Parts::module_buffers: a forward may have changed them since they were broadcast
  std::weak_ptr<ReplicaMean> replica_mean_;
  std::string failure_; // of a step on several ranks, which ended their groups
  std::string torn_;
};

} // namespace trireme::engine
