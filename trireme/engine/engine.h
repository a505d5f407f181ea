#pragma once

#include <trireme/comm/group.h>
#include <trireme/data/batch.h>
#include <trireme/device/memory.h>
#include <trireme/memory/activations/activations.h>
#include <trireme/memory/offload/traffic.h>
#include <trireme/monitor/straggler.h>
#include <trireme/shards/zero/gathered_parameters.h>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace trireme::comm {
class World;
}
namespace trireme::data {
class DataLoader;
}
namespace trireme::parallel {
class Workers;
}

namespace trireme::engine {

struct Initialized;
struct InitializeOptions;
class StepOutcome;

/// The mean loss over the samples of a micro-batch, a 0-dim tensor; optionally with the model's output: {loss,
/// {logits}}.
struct LossAndLogits {
  at::Tensor loss;
  std::vector<at::Tensor> logits;

  LossAndLogits(at::Tensor loss = {}, std::vector<at::Tensor> logits = {})
      : loss(std::move(loss)), logits(std::move(logits)) {}
};

/// Forward pass and loss of one micro-batch. A function that returns only the loss, a tensor, is accepted too.
using LossFunction = std::function<LossAndLogits(const data::Batch&)>;

/// Seconds of the last step.
///
/// On the CPU the host's clock measures all of them. On a GPU the host runs ahead, so the GPU measures forward,
/// backward and optimizer on the current stream. Its pauses within a phase count (launches, collectives on other
/// streams). These times are read when the GPU is known to have finished, so they are of an earlier step, normally the
/// one before (0 in the first). The host's clock measures the other three.
struct StepTimes {
  /// Waiting for the loader; train_batch() only.
  double data = 0;
  double forward = 0;
  double backward = 0;
  /// Communication that backward did not hide.
  double exposed_communication = 0;
  double optimizer = 0;
  /// From the begin of the step to its end, by the host's clock.
  double total = 0;
};

/// Trains one model on the ranks of one group; initialize() returns it.
///
/// Call either train_batch(), or forward(), backward() and step() once per micro-batch: the results are bit-equal. An
/// optimizer step happens every gradient_accumulation_steps() micro-batches.
///
/// Skipped steps: A step whose loss is not finite on any rank is skipped on all ranks; so is one whose gradient norm is
/// not finite, when clipping or in low precision. Weights, states and learning rate stay; skipped_steps() counts. With
/// "parameter_averaging" or a program's own sync, "all ranks" are those of GradientSync::step_group(), whose loss and
/// norm are reported. In a step that ends with an average, the loss is the mean of all replicas, and all skip if it is
/// not finite.
///
/// Exceptions: An exception of train_batch(), forward(), backward() or step() ends the current step. A single rank
/// drops the step and may continue with its first micro-batch; samples already read and buffers already changed stay.
/// With several ranks, the others get a PeerError that names this rank, and the engine cannot continue: load a
/// checkpoint in a new run.
///
/// Semantics: Those of DeepSpeed: the loss is divided by the accumulation steps, "Adam" is AdamW, gradient_clipping is
/// 1.0 by default (0 with a torch optimizer). Before every step and evaluation, buffers of the model (BatchNorm's
/// running_mean) are the first replica's ("broadcast_buffers").
///
/// A parameter that no rank used in a step is not stepped, at every ZeRO stage: no weight decay, unchanged moments, as
/// PyTorch skips parameters without a gradient. Bias correction counts the optimizer's steps, not the parameter's. With
/// "step_in_backward", which does not wait for the other ranks, an unused parameter is stepped with a gradient of zero.
/// Weight decay acts on all parameters, biases and norms too, as in PyTorch, unless "weight_decay_rule" or a parameter
/// group says otherwise.
class Engine {
 public:
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs one optimizer step on gradient_accumulation_steps() micro-batches from the loader, or from `next`. Returns
  /// the mean loss over micro-batches and data ranks, the same on every rank: 0-dim, fp64. On a GPU the tensor may be
  /// there, and the host does not wait for it. In a pipeline only the first and the last stage call `next`.
  at::Tensor train_batch();
  at::Tensor train_batch(const std::function<data::Batch()>& next);

  /// Returns the loss of the micro-batch with its graph. Calls train() if the model is in evaluation mode, which puts
  /// all its modules into training mode. Not for several pipeline stages.
  at::Tensor forward(const data::Batch& batch);
  /// Runs backward, once per micro-batch: add losses up first. The engine takes gradients from this call only; those of
  /// other losses, and of other engines' models, are dropped. Errors: InputError for a second call before step().
  void backward(const at::Tensor& loss);
  /// Counts the micro-batch, and steps the optimizer at the accumulation boundary. Errors: InputError without
  /// backward().
  void step();
  /// Drops the gradients accumulated since the last step; the next micro-batch is the first of a step. Call it on every
  /// rank. Not needed after step(). Errors: InputError if some parameters have been stepped in backward.
  void zero_grad();

  /// Returns the mean loss of `batch` over its real samples and all ranks, in evaluation mode, without gradients.
  /// Evaluates the mean of the replicas if they differ ("parameter_averaging"). Afterwards each module is in its
  /// previous mode: a frozen BatchNorm stays frozen. Collective.
  at::Tensor eval_batch(const data::Batch& batch);
  /// Also returns the logits of this rank's real samples, without gradients: those of the loss function, or the last
  /// outputs of a pipeline. If the PipelineModule has no loss function, the first output is the loss and the others are
  /// the logits. Only ranks of the last stage get any.
  LossAndLogits eval_batch_with_logits(const data::Batch& batch);
  /// Returns the mean loss over all samples that `loader` yields on all ranks, at most `max_batches` per rank (0: all).
  /// Collective; ranks may have different numbers of samples.
  double evaluate(data::DataLoader& loader, int64_t max_batches = 0);

  int64_t train_batch_size() const;
  int64_t train_micro_batch_size_per_gpu() const;
  int64_t gradient_accumulation_steps() const;
  bool is_gradient_accumulation_boundary() const;

  int64_t global_steps() const;
  /// The other processes of the training if each is a world of its own (InitializeOptions::sync): joining, finishing,
  /// who is first. Null if all ranks are in this world. A worker of parameter servers that joins late counts the steps
  /// made without it and skips their samples, so one step may add more than 1 to global_steps().
  parallel::Workers* workers();
  int64_t skipped_steps() const;
  int64_t global_samples() const;
  /// Whether some rank had been asked to stop (see Preemption) before the last backward of the step. The answer is the
  /// same on every rank, so all can save and exit after the same step. It is sent with the loss. On a GPU it is that of
  /// the step before, unless something has waited for the last one (a save, an evaluation).
  bool stop_agreed() const;
  /// Learning rate of the last step; a parameter group's is this times its lr_factor.
  double get_lr() const;
  /// Sets the lr of all further steps; checkpoints keep it. Collective. Errors: InputError if ranks give different
  /// values, or if the configuration's "scheduler", InitializeOptions::lr or a torch optimizer sets the lr.
  void set_lr(double lr);
  /// Gradient norm of the last step before clipping; absent without clipping and without want_grad_norm().
  std::optional<double> get_global_grad_norm() const;
  /// Computes the norm also without clipping: one more read of the gradients per step. A step that has begun in
  /// backward ("step_in_backward") is not skipped because of the norm.
  void want_grad_norm(bool on);
  const StepTimes& times() const;
  /// How often the host waited for the GPU in the last step: 0 on the CPU; on a GPU 1 if the host was a step ahead of
  /// it, else 0. Not counted are waits between steps, as in loss(), of the loss function (item(), cpu()) and the search
  /// for the source of a NaN (precision/overflow_report.h).
  int64_t host_syncs() const;
  /// GPU memory that tensors of this process hold; absent on the CPU, and if libtorch's allocator for the device keeps
  /// no statistics. For host memory see monitor/resources.h.
  std::optional<device::MemoryUse> device_memory() const;
  /// The replica of this rank's stage that the others waited for in the last 16 steps, if any; its rank is a rank of
  /// the world. Rank 0 of the data axis logs a warning about it.
  const std::optional<monitor::Straggler>& straggler() const;
  /// Trained and frozen elements of the whole model; tied ones count once.
  int64_t num_parameters() const;
  /// Trained ones of them.
  int64_t num_trained_parameters() const;
  /// The loss scale of the last step; absent without loss scaling.
  std::optional<double> loss_scale() const;
  /// Mean loss of the last step, the same on every rank.
  double loss() const;
  /// All of them, and whether the step was taken (engine/step_outcome.h). On a GPU, skipped_steps(), get_lr(), loss()
  /// and get_global_grad_norm() wait for the last step; read an outcome after the next step, and nothing waits.
  std::shared_ptr<const StepOutcome> outcome() const;

  /// The policy of each part's activations and their bytes ("activation_checkpointing"); null if not configured.
  const activations::Activations* activations() const;
  /// The device of this rank's model; batches are moved there.
  at::Device device() const;
  /// This rank's groups: data-parallel ranks, stages of its pipeline, and the ranks that share its sequences and its
  /// layers.
  const comm::Group& group() const;
  const comm::Group& pipe_group() const;
  const comm::Group& context_group() const;
  const comm::Group& tensor_group() const;
  /// Bytes that this rank has sent in all of them.
  int64_t bytes_sent() const;
  /// The same by axes of the mesh: "data", "tensor", "data+context", ... Groups along no axis ("reduce_groups") count
  /// as "data". A group of all ranks also carries traffic that belongs to no axis: losses, checkpoints.
  std::map<std::string, int64_t> bytes_sent_by_axes() const;
  /// Bytes that this rank has read from and written to files of masters, states and shards; absent without such files.
  std::optional<offload::Traffic> offload_traffic() const;
  /// Applies the last step's delayed update (offload::OptimizerOptions) to the parameters now. Without this call they
  /// lack it until the next step, evaluate(), eval_batch(), gather_parameters() or save_checkpoint(). The following
  /// step uses them one step earlier than it would otherwise. Collective; does nothing without a delayed update.
  void finish_delayed_update();
  torch::nn::Module& module();
  /// Gathers these parameters on every rank during the lifetime of the result, to read them, or to change them on one
  /// data-parallel rank, whose values all ranks then take. For ZeRO stage 3; at other stages they are complete already.
  /// Collective at both ends. See shards/zero/gathered_parameters.h.
  std::unique_ptr<zero::GatheredParameters> gather_parameters(std::vector<at::Tensor> parameters,
                                                              std::optional<int> modifier_rank = std::nullopt);

  /// Returns the whole model on rank 0, null on other ranks: a module with the model's names of parameters and buffers,
  /// on the CPU, in the type of computation. Stages, shards of ZeRO stage 3 and parts of tensor ranks are merged. Save
  /// it by torch::save(engine->gather_model(), file); torch::load() of the same model in one process reads it.
  /// Collective. Cost: rank 0 needs memory for the whole model; save_checkpoint() does not. Errors: InputError as
  /// save_checkpoint().
  std::shared_ptr<torch::nn::Module> gather_model();
  /// Replaces this rank's model by the mean of the replicas during the lifetime of the result, with the module buffers
  /// of the first replica. Null unless replicas step separately ("parameter_averaging") and differ now. Elastic
  /// replicas, which may be lost and join, keep their own models: they have no mean between two averaging steps.
  /// evaluate() and eval_batch() do this already; use it for other computations with the model. Collective at its
  /// begin; no step during its lifetime. See shards/data_parallel/mean_parameters.h.
  std::shared_ptr<void> mean_of_replicas();

  /// Saves weights, optimizer, schedule, data position and random state as `folder`/`tag` (default global_step<N>).
  /// Collective. Errors: InputError between two averaging steps of "parameter_averaging", naming the next. Error, the
  /// same on every rank, if writing fails: training may continue, and earlier checkpoints are intact.
  void save_checkpoint(const std::filesystem::path& folder, const std::string& tag = "");
  /// The same with the program's own state, rank 0's. Keeps only the newest `keep_last` checkpoints of the folder (0:
  /// all).
  void save_checkpoint(const std::filesystem::path& folder, const std::string& tag, const nlohmann::json& client_state,
                       int64_t keep_last = 0);
  /// Loads the newest complete checkpoint of `folder`, or the checkpoint that it is. Returns on every rank the client
  /// state that rank 0 saved; nullopt if the folder has no checkpoint yet. Collective. On the same number of ranks, the
  /// run continues bit-equal to one that was never interrupted.
  std::optional<nlohmann::json> load_checkpoint(const std::filesystem::path& folder, const std::string& tag = "");

 private:
  class Impl; // engine_impl.h
  explicit Engine(std::unique_ptr<Impl> impl);
  friend Initialized initialize(comm::World& world, const InitializeOptions& options);
  friend class TrainingState;

  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::engine
