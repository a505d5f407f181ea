#pragma once

#include <trireme/base/error.h>
#include <trireme/checkpoint/options.h>
#include <trireme/config/batch_size.h>
#include <trireme/data/loader.h>
#include <trireme/engine/arrivals.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/step_report.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/optim/schedule.h>
#include <trireme/parallel/data/module_buffers.h>
#include <trireme/parallel/data/reducer.h>
#include <trireme/parallel/data/replicas.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/ties.h>
#include <trireme/precision/loss_scaler.h>
#include <trireme/precision/overflow_report.h>
#include <trireme/zero/parameter_coordinator.h>
#include <trireme/zero/parameter_gather.h>

#include <chrono>
#include <set>

namespace trireme::engine {

using Clock = std::chrono::steady_clock;

/// The parts an engine is made of and where it is; private to this folder.
class Engine::Impl {
 public:
  Impl() = default;
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // What the engine is made of, by initialize().
  std::shared_ptr<torch::nn::Module> model;
  LossFunction loss_function;
  comm::Group group; // the data axis
  comm::Group pipe;
  comm::Group everyone;
  std::shared_ptr<pipeline::PipelineModule> layers; // null: a model in one piece
  std::unique_ptr<pipeline::Ties> ties;
  std::unique_ptr<pipeline::Executor> executor;
  config::BatchTriple batch;
  double clipping = 0;
  precision::PrecisionOptions precision;
  parallel::FlatBuffers buffers;
  parallel::FlatBuffers frozen; // sharded parameters that are not trained
  std::optional<parallel::ModuleBuffers> module_buffers; // absent: ranks keep their own
  std::unique_ptr<parallel::Reducer> reducer;
  std::shared_ptr<optim::FlatOptimizer> optimizer;
  std::unique_ptr<zero::ParameterGather> parameter_gather; // null: every rank steps everything
  std::shared_ptr<zero::ParameterCoordinator> coordinator; // of sharded parameters, if there are any
  std::shared_ptr<optim::Schedule> schedule;
  std::shared_ptr<data::RepeatingLoader> loader;
  nlohmann::ordered_json config;
  checkpoint::CheckpointOptions checkpoint;
  std::optional<StepReport> report; // rank 0
  std::optional<Arrivals> arrivals;

  // Where it is.
  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  int64_t skips_in_a_row = 0;
  int64_t global_samples = 0;
  double loss_sum = 0; // of this step's micro-batches, over the accumulation steps
  double mean_loss = 0;
  precision::LossScaler scaler;
  double used_scale = 1; // of the last step
  std::unique_ptr<precision::OverflowWatch> overflow_watch; // while steps are skipped one after the other
  std::string overflow_source;
  double lr = 0;
  bool stop_agreed = false;
  std::optional<double> grad_norm;
  bool norm_wanted = false;
  bool module_buffers_differ = true; // a forward may have changed them since they were broadcast
  bool may_step_in_backward = false;
  bool in_step = false; // from the first micro-batch on
  bool scale_was_used = false; // by a gradient of this step
  bool scale_was_lowered_between = false; // so gradients of this step have different factors
  double agreed_scale = 1; // what every rank has, but for those whose loss has lowered it since
  std::string failure; // of a step on several ranks, which ended their groups
  // Whether buckets of this step are stepped already (with "step_in_backward" during backward), and which were.
  bool stepping = false;
  std::set<std::pair<int64_t, int64_t>> stepped;
  std::string torn; // why the parameters are not of one step: only a checkpoint brings them together again
  int64_t num_parameters = 0;

  StepTimes times;
  StepTimes running;
  Clock::time_point step_start;
  double exposed_before = 0;
  double waiting_for_stages = 0; // for their losses and norms
  double loading = 0; // of the step that begins or runs

  struct LossSum {
    double loss = 0;
    double samples = 0;
    LossSum& operator+=(const LossSum& other) {
      loss += other.loss;
      samples += other.samples;
      return *this;
    }
  };

  bool parameters_are_sharded() const {
    return !buffers.empty() && buffers.front()->parameters_are_sharded();
  }
  /// Whether the executor runs the step; sharded parameters are for models in one stage, which need none.
  bool runs_schedule() const {
    return executor && !parameters_are_sharded();
  }
  bool looks_for_overflow() const {
    return precision.scales_loss() || (precision.compute == precision::Type::bf16 && precision.check_grad_overflow);
  }
  bool at_boundary() const;
  /// The next micro-batch, as a part of the step.
  data::Batch load(const std::function<data::Batch()>& next);
  at::Tensor forward(const data::Batch& micro_batch);
  /// The loss function in the precision that was asked for.
  LossAndLogits loss_of(const data::Batch& micro_batch) const;
  data::Batch with_inputs_cast(data::Batch micro_batch) const;
  std::shared_ptr<void> autocast_guard() const;
  void backward(const at::Tensor& loss);
  /// The gradient of a micro-batch's loss of this type.
  double root_gradient(at::ScalarType loss);
  void step();
  /// Runs a part of a step. An exception ends the whole step: one rank drops what there is of it, and the next micro-batch is its first;
  /// of several ranks, the others wait for this one, so their groups end too.
  template <typename F>
  void drop_on_failure(const F& part) {
    try {
      part();
    } catch (const PeerError&) {
      throw; // nobody goes on
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
  /// Errors: Error after a step that ended the ranks' groups.
  void check_usable() const;
  /// Also where some parameters are a step ahead of others, for good or until step().
  void check_whole(const char* wanted) const;
  /// The step would leave what gather_parameters() holds behind. Errors: InputError.
  void check_released() const;
  /// Makes every replica's module buffers those of the first, if they may differ. Collective.
  void broadcast_module_buffers();
  /// All micro-batches of a step as a pipeline, up to reduced gradients.
  void run_pipeline(const std::function<data::Batch()>& next);
  /// `logits`: where those of the last micro-batch go, if they are wanted.
  LossSum evaluate(const data::Batch& micro_batch, pipeline::Tensors* logits = nullptr);
  LossSum evaluate_together(data::DataLoader& loader, int64_t max_batches);
  LossSum evaluate_pipeline(int64_t micro_batches, const std::function<data::Batch()>& next, pipeline::Tensors* logits = nullptr);
  double mean_over_ranks(const LossSum& sum) const;

  /// For Reducer::on_bucket_final, where "step_in_backward" asks for it.
  void step_in_backward(int64_t buffer, int64_t bucket);

 private:
  void update();
  double lowered_scale() const;
  bool agree_on_scale(double lowered);
  void start_step();
  void drop_step(const char* why) noexcept;
  double exposed_seconds() const;
  void begin_optimizer_step(double grad_scale, const std::vector<std::vector<bool>>& unused = {});
  std::vector<std::vector<bool>> unused_here() const;
  std::vector<std::vector<bool>> unused_everywhere(double ranks_that_lack_some);
  void step_bucket(int64_t buffer, int64_t bucket);
  void skip(const precision::LossScaler::Update& scaling);
  double reduced_loss();
  void set_riders();
  bool has_loss() const {
    return pipe.rank() == pipe.size() - 1;
  }
};

/// What Engine hides, for this folder.
struct EngineAccess {
  using Impl = Engine::Impl;
  static std::shared_ptr<Engine> make(std::unique_ptr<Impl> impl) {
    return std::shared_ptr<Engine>(new Engine(std::move(impl)));
  }
};
using EngineImpl = EngineAccess::Impl;

} // namespace trireme::engine
