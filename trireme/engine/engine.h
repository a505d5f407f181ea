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

/// The loss of a micro-batch, a 0-dim tensor, the mean over its samples; with it, if one likes, what the model gave:
/// {loss, {logits}}.
struct LossAndLogits {
  at::Tensor loss;
  std::vector<at::Tensor> logits;

  LossAndLogits(at::Tensor loss = {}, std::vector<at::Tensor> logits = {})
      : loss(std::move(loss)), logits(std::move(logits)) {}
};

/// Forward pass and loss of one micro-batch. A function that returns the loss alone, a tensor, is one too.
using LossFunction = std::function<LossAndLogits(const data::Batch&)>;

/// Where the time of the last step went, in seconds.
///
/// On the CPU all of it is by the host's clock. On a device the host runs ahead, so forward, backward and optimizer are
/// the device's own times, from where it begins such a part on the current stream to where it ends it, pauses in it
/// included (for launches, for collectives on other streams). They are read when the device is known to be done:
/// forward and backward are this step's, `optimizer` is the step before's, 0 in the first step. Where the host does not
/// wait for the device after backward ("step_in_backward"), all three may be of an earlier step. The other three are
/// the host's.
struct StepTimes {
  /// Waiting for the loader; known with train_batch() only.
  double data = 0;
  double forward = 0;
  double backward = 0;
  /// Communication that backward did not hide.
  double exposed_communication = 0;
  double optimizer = 0;
  /// From the beginning of the step to its end, for the host.
  double total = 0;
};

/// Trains one model on the ranks of one group: what initialize() returns.
///
/// Either train_batch(), or forward(), backward() and step() once for each micro-batch:
/// both are the same computation, bit for bit. A step happens at the accumulation
/// boundary: every gradient_accumulation_steps() micro-batches.
///
/// A step whose loss (or gradient norm, when clipping or in low precision) is not finite on any rank is
/// skipped on all ranks: weights, states and learning rate stay; skipped_steps() counts. With
/// "parameter_averaging" or a sync of the program's, "all ranks" are those of GradientSync::step_group(), whose loss
/// and norm are reported; in a step that ends with an average, the loss is the mean of all replicas, and one that is
/// not finite makes all of them skip. An exception of train_batch(), forward(), backward() or step() ends the step that
/// it is a part of. One rank alone drops that step and may go on with its first micro-batch; samples that were read and
/// buffers that a forward changed stay as they are. With several ranks, the others get a PeerError that names this one,
/// because they wait for its messages, and the engine cannot go on. Load a checkpoint in a new run. Buffers of the
/// model (BatchNorm's running_mean) are the first replica's before every step and evaluation
/// ("broadcast_buffers"). Meanings are DeepSpeed's: the loss is divided by the accumulation steps, "Adam" is AdamW,
/// gradient_clipping is 1.0 unless said otherwise (with a torch optimizer 0). A parameter that no rank used in a step
/// is not stepped: no weight decay, moments as they were, as PyTorch leaves out parameters without a gradient; the same
/// at every ZeRO stage. Bias correction counts the optimizer's steps, not the parameter's. With step_in_backward, which
/// does not wait for the other ranks' word, it is stepped with a gradient of zero. Weight decay acts on all parameters,
/// biases and norms too, as in PyTorch, unless "weight_decay_rule" or a parameter group says otherwise.
class Engine {
 public:
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step on gradient_accumulation_steps() micro-batches from the loader
  /// (or from `next`). Returns the mean loss over micro-batches and data ranks, the same
  /// on every rank. In a pipeline only the first and the last stage call `next`.
  at::Tensor train_batch();
  at::Tensor train_batch(const std::function<data::Batch()>& next);

  /// The micro-batch's loss, in training mode, with its graph: train() is called where the model is in evaluation mode,
  /// which puts all its modules into training mode. Not for several pipeline stages.
  at::Tensor forward(const data::Batch& batch);
  /// The only backward whose gradients the engine takes: those that other losses give the parameters are dropped, of
  /// another engine's model too. Once for each micro-batch: add losses up. Errors: InputError for a second one before
  /// step().
  void backward(const at::Tensor& loss);
  /// Acts at the boundary only, and counts the micro-batch. Errors: InputError without backward().
  void step();
  /// Forgets the gradients of the micro-batches since the last step: the next one is a step's first. On every rank
  /// alike. Not needed after step(). Errors: InputError where some parameters have been stepped in backward.
  void zero_grad();

  /// Mean loss of `batch` over its real samples and all ranks, in evaluation mode,
  /// without gradients, of the mean of the replicas where these differ ("parameter_averaging"); afterwards each module
  /// is in the mode it was in (a frozen BatchNorm stays frozen). Collective.
  at::Tensor eval_batch(const data::Batch& batch);
  /// The same, with the logits of this rank's real samples, without gradients: those of the loss function, or a
  /// pipeline's last outputs (without a loss in the PipelineModule those behind the loss). Only the last stage has
  /// them; elsewhere there are none.
  LossAndLogits eval_batch_with_logits(const data::Batch& batch);
  /// Mean loss over all samples that `loader` yields on all ranks, at most `max_batches`
  /// a rank (0: all). Collective; ranks may have different numbers of samples.
  double evaluate(data::DataLoader& loader, int64_t max_batches = 0);

  int64_t train_batch_size() const;
  int64_t train_micro_batch_size_per_gpu() const;
  int64_t gradient_accumulation_steps() const;
  bool is_gradient_accumulation_boundary() const;

  int64_t global_steps() const;
  /// The other processes of the training, where each is a world of its own (InitializeOptions::sync): joining,
  /// finishing, who is first. Null: all ranks are in this world. A worker of parameter servers that comes too late
  /// counts the steps that the others have made meanwhile and skips their samples: global_steps() may grow by more than
  /// one in a step.
  parallel::Workers* workers();
  int64_t skipped_steps() const;
  int64_t global_samples() const;
  /// Whether a rank had been asked to stop (see Preemption) before the last backward of the step: the same answer
  /// on every rank, so that all can save and leave after the same step. The question travels with the loss, in one
  /// small message that backward hides.
  bool stop_agreed() const;
  /// Learning rate of the last step; that of a parameter group is this times its lr_factor.
  double get_lr() const;
  /// The lr of all further steps; checkpoints keep it. Collective. Errors: InputError where ranks give different ones,
  /// and where the configuration's "scheduler", InitializeOptions::lr or a torch optimizer decides it.
  void set_lr(double lr);
  /// Gradient norm before clipping of the last step; absent when clipping is off and
  /// want_grad_norm() was not asked for.
  std::optional<double> get_global_grad_norm() const;
  /// Computes the norm also without clipping: one more read of the gradients a step. A step that has begun in backward
  /// ("step_in_backward") is not skipped for it.
  void want_grad_norm(bool on);
  const StepTimes& times() const;
  /// How often the host waited for the device in the last step, 1 where all goes well: for losses and norm. 0 on the
  /// CPU. What the loss function waits for by itself (item(), cpu()) is not seen, nor is the search for a source of NaN
  /// (precision/overflow_report.h).
  int64_t host_syncs() const;
  /// What the tensors of this process hold of the device's memory; absent on the CPU and where libtorch's allocator for
  /// the device keeps no count. Memory of the host is monitor/resources.h's.
  std::optional<device::MemoryUse> device_memory() const;
  /// The replica of this rank's stage that kept the others waiting in the last 16 steps, if one did; its rank is one of
  /// the world. Rank 0 of the data axis warns of it by itself.
  const std::optional<monitor::Straggler>& straggler() const;
  /// Trained and frozen numbers of the whole model, tied ones once.
  int64_t num_parameters() const;
  /// The factor that the last step's loss was multiplied with; absent where losses are not scaled.
  std::optional<double> loss_scale() const;
  /// Mean loss of the last step, the same on every rank.
  double loss() const;

  /// What becomes of activations between forward and backward ("activation_checkpointing"): ways, bytes. Null where
  /// nothing was asked for.
  const activations::Activations* activations() const;
  /// Where this rank trains; the model is there, and batches are moved there.
  at::Device device() const;
  /// The data-parallel ranks of this one, the stages of its pipeline, and the ranks that share the tokens and the
  /// layers of each.
  const comm::Group& group() const;
  const comm::Group& pipe_group() const;
  const comm::Group& context_group() const;
  const comm::Group& tensor_group() const;
  /// Bytes this rank has sent to any of them.
  int64_t bytes_sent() const;
  /// The same by the axes of the mesh that the ranks lie along: "data", "tensor", "data+context", ... Ranks along no
  /// axis of the mesh ("reduce_groups") count as "data". A group of all ranks also carries what is not of one axis:
  /// losses, checkpoints.
  std::map<std::string, int64_t> bytes_sent_by_axes() const;
  /// Bytes that this rank has read from and written to files of masters, states and shards so far; absent: none are in
  /// files.
  std::optional<offload::Traffic> offload_traffic() const;
  /// With a delayed update (offload::OptimizerOptions) the parameters lack the last step's until the next one, or until
  /// evaluate(), eval_batch(), gather_parameters(), save_checkpoint() or this. The step after it then uses them, a step
  /// earlier than it would. Collective; else nothing happens.
  void finish_delayed_update();
  torch::nn::Module& module();
  /// Makes these parameters whole on every rank while what it returns lives: to look at them, or to change them on one
  /// of the data-parallel ranks, whose values are then everybody's. For ZeRO stage 3; at other stages they are whole
  /// anyway. Collective at both ends. See shards/zero/gathered_parameters.h.
  std::unique_ptr<zero::GatheredParameters> gather_parameters(std::vector<at::Tensor> parameters,
                                                              std::optional<int> modifier_rank = std::nullopt);

  /// The whole model on rank 0, as a module with its parameters and buffers by their names, on the CPU, in the type
  /// that is computed in; null on the other ranks. For torch::save(engine->gather_model(), file), which torch::load()
  /// of the same model in one process reads: a pipeline's stages, the shards of ZeRO stage 3 and the parts of tensor
  /// ranks are put together. Collective. Cost: rank 0 needs memory for all of it; save_checkpoint() does not. Errors:
  /// InputError as of save_checkpoint().
  std::shared_ptr<torch::nn::Module> gather_model();
  /// Where replicas step by themselves ("parameter_averaging") and differ now: makes this rank's model their mean while
  /// what it returns lives, with the module buffers of the first replica; elsewhere null. For what a program computes
  /// with the model between two meetings; evaluate() and eval_batch() do it by themselves. Replicas that may be lost
  /// and come are each alone between two meetings: theirs is no mean. Collective at its begin; no step while it lives.
  /// See shards/data_parallel/mean_parameters.h.
  std::shared_ptr<void> mean_of_replicas();

  /// Saves weights, optimizer, schedule, data position and random state as
  /// `folder`/`tag` (default global_step<N>). Collective. Errors: InputError between two meetings of
  /// "parameter_averaging", naming the next; Error, the same on every rank; training may go on after it and earlier
  /// checkpoints are whole.
  void save_checkpoint(const std::filesystem::path& folder, const std::string& tag = "");
  /// The same with a state of the client's own, rank 0's, and only the newest `keep_last` checkpoints of the folder
  /// stay (0: all).
  void save_checkpoint(const std::filesystem::path& folder, const std::string& tag, const nlohmann::json& client_state,
                       int64_t keep_last = 0);
  /// Continues from `folder` (its newest whole checkpoint) or from one checkpoint.
  /// Returns the client state that rank 0 saved, on every rank; nullopt, and nothing is loaded, when nothing was saved
  /// there yet. Collective. With the same number of ranks the run goes on bit for bit as if never interrupted.
  std::optional<nlohmann::json> load_checkpoint(const std::filesystem::path& folder, const std::string& tag = "");

 private:
  class Impl; // engine_impl.h
  explicit Engine(std::unique_ptr<Impl> impl);
  friend Initialized initialize(comm::World& world, const InitializeOptions& options);
  friend class TrainingState;

  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::engine
