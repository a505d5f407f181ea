#pragma once

#include <trireme/base/run_token.h>
#include <trireme/checkpoint/options.h>
#include <trireme/config/batch_size.h>
#include <trireme/data/loader.h>
#include <trireme/device/upload.h>
#include <trireme/engine/claimed_model.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/unchanged_model.h>
#include <trireme/memory/activations/activations.h>
#include <trireme/memory/offload/rank_folder.h>
#include <trireme/memory/offload/traffic.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/optim/schedule.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/ties.h>
#include <trireme/parallel/tensor/split.h>
#include <trireme/parallel/tensor/split_module.h>
#include <trireme/precision/options.h>
#include <trireme/shards/data_parallel/convert_sync_batch_norm.h>
#include <trireme/shards/data_parallel/gradient_sync.h>
#include <trireme/shards/data_parallel/module_buffers.h>
#include <trireme/shards/data_parallel/reducer.h>
#include <trireme/shards/data_parallel/replicas.h>
#include <trireme/shards/zero/parameter_coordinator.h>
#include <trireme/shards/zero/sharding.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::engine {

/// Parameters that every rank of the tensor axis has whole, and the number of the ReduceGroups entry that sums their
/// gradients.
struct WholeParameters {
  int group = 0;
  /// The same for the program's groups 1, 2, ..., whose other parameters are split among the tensor ranks. Empty if
  /// is_sum.
  std::vector<int> of_program = {};
  /// Tensor ranks have partial gradients that must be summed (sequence parallelism), instead of equal ones.
  bool is_sum = false;

  /// Whether tensor ranks have the parameters of this group whole.
  bool has(int reduce_group) const {
    return reduce_group == group || std::find(of_program.begin(), of_program.end(), reduce_group) != of_program.end();
  }
};

/// Settings of steps and checkpoints, from configuration and program, with "auto" resolved.
struct Settings {
  config::BatchTriple batch;
  double clipping = 0;
  int64_t seed = 0;
  precision::PrecisionOptions precision;
  zero::Sharding sharding;
  bool builds_on_host = false;        // of a device: parameters move when they are copied into flat buffers
  bool rates_may_differ = false;      // between ranks: the program sets them, not the configuration
  nlohmann::ordered_json config;      // stored in checkpoints: perhaps a whole run file
  nlohmann::ordered_json used_config; // the engine's, as used
  checkpoint::CheckpointOptions checkpoint;
  std::shared_ptr<const RunToken> run_token; // null: any run may save
};

/// Position of this rank: its groups, its device and its files.
struct Ranks {
  comm::Group group; // data and context: the ranks that sum gradients
  comm::Group data;
  comm::Group pipe;
  comm::Group context;
  comm::Group tensor;
  comm::Group model_ranks; // pipe and tensor: the ranks that share one replica of the model
  comm::Group stage;       // data, context and tensor: the ranks that have the same layers
  comm::Group everyone;
  nlohmann::json axes; // axes_in_use() of the mesh
  int worker = 0;      // number of this process among those of other worlds (SyncFactory), and their count
  int workers = 1;
  std::unique_ptr<device::Uploader> uploader;                                  // to the device that this rank trains on
  std::map<std::string, std::shared_ptr<offload::RankFolder>> offload_folders; // by nvme_path
  std::shared_ptr<offload::Traffic> offloaded;                                 // null: nothing is in files
};

/// How ranks agree on one model, and which ranks sum which gradients.
struct Agreement {
  std::unique_ptr<parallel::GradientSync> sync;
  WholeParameters whole;
  int program_groups = 0;             // of InitializeOptions::reduce_groups
  bool several_reduce_groups = false; // on any rank
};

/// This rank's part of the model: modules, and how they are split.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::optional<ClaimedModel> claim;
  LossFunction loss_function;
  std::optional<tensor::SplitModel> ordinary;       // a model that engine.tensor_parallel has split
  tensor::Placements split;                         // parameters and buffers of which each tensor rank has a part
  std::map<const void*, bucket::Placement> tiles;   // of parameters that are tiles of one (zero::TiledLinear)
  std::shared_ptr<pipeline::PipelineModule> layers; // null: a model in one piece
  std::unique_ptr<pipeline::Ties> ties;
  std::unique_ptr<pipeline::Executor> executor;
  std::vector<parallel::ModuleBuffers> module_buffers; // of replicas, then of tensor ranks; empty: ranks keep their own
  std::optional<parallel::SyncedBatchNorms> synced_norms;
};

/// The model's parameters in flat buffers.
struct Buffers {
  parallel::FlatBuffers trained;
  parallel::FlatBuffers frozen; // sharded parameters that are not trained
  std::optional<UnchangedModel> unchanged;
  int64_t num_parameters = 0;
  int64_t num_trained = 0;                                 // of them
  std::shared_ptr<zero::ParameterCoordinator> coordinator; // of sharded parameters; may be null
  std::unique_ptr<parallel::Reducer> reducer;
};

/// Optimizer, schedule, activations and loader of a step.
struct Stepper {
  std::shared_ptr<optim::FlatOptimizer> optimizer;
  std::shared_ptr<optim::Schedule> schedule;
  bool may_step_in_backward = false;
  std::unique_ptr<activations::Activations> activations; // null: autograd keeps them
  std::shared_ptr<data::RepeatingLoader> loader;
};

/// The parts of an engine. initialize() builds them, each stage from those before it.
struct Parts {
  Settings settings;
  Ranks ranks;
  Agreement agreement;
  Model model;
  Buffers buffers;
  Stepper stepper;

  Parts() = default;
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  at::Device device() const { return ranks.uploader->device(); }
  bool parameters_are_sharded() const {
    return !buffers.trained.empty() && buffers.trained.front()->parameters_are_sharded();
  }
  /// Whether the executor runs the step. A single stage with sharded parameters does not need it.
  bool runs_schedule() const { return model.executor && (ranks.pipe.size() > 1 || !parameters_are_sharded()); }
  bool looks_for_overflow() const {
    return settings.precision.scales_loss() ||
           (settings.precision.compute == precision::Type::bf16 && settings.precision.check_grad_overflow);
  }
  /// Whether all ranks of the data axis step (or skip) as one. Otherwise each replica decides separately.
  bool steps_together() const { return agreement.sync->step_group().size() == ranks.group.size(); }
  /// All ranks that step, or skip the step, as one.
  const comm::Group& step_ranks() const { return steps_together() ? ranks.everyone : ranks.model_ranks; }
  /// Whether this rank reports the loss to the other ranks of its replica. The last stage computes it, on all tensor
  /// ranks.
  bool tells_loss() const { return ranks.pipe.rank() == ranks.pipe.size() - 1 && ranks.tensor.rank() == 0; }
  /// Which part of a whole parameter this rank has, as the model's layers define it.
  bucket::Placement placement_of(const at::Tensor& parameter) const;
  /// Seconds of communication so far that nothing has hidden.
  double exposed_seconds() const {
    return buffers.reducer->exposed_seconds() + buffers.coordinator->exposed_seconds() +
           agreement.sync->step_exchange().exposed_seconds();
  }
  /// Makes the loader weigh losses of the step after step number `steps` as its gradients are summed: by the targets of
  /// all ranks, or by this rank's own.
  void weigh_losses_after(int64_t steps) const;
  /// Calls the loss function in the configured precision.
  LossAndLogits loss_of(const data::Batch& micro_batch) const;
  /// Moves the micro-batch to the device, its inputs in the type of computation.
  data::Batch prepared(data::Batch micro_batch) const;
  /// Autocast and handling of activations during a forward or a loss. Null if neither is used.
  std::shared_ptr<void> forward_guard() const;
};

} // namespace trireme::engine
