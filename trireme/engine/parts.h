#pragma once

#include <trireme/activations/activations.h>
#include <trireme/base/run_token.h>
#include <trireme/checkpoint/options.h>
#include <trireme/config/batch_size.h>
#include <trireme/data/loader.h>
#include <trireme/device/upload.h>
#include <trireme/engine/claimed_model.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/unchanged_model.h>
#include <trireme/offload/rank_folder.h>
#include <trireme/offload/traffic.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/optim/schedule.h>
#include <trireme/parallel/averaging/elastic_averaging_sync.h>
#include <trireme/parallel/data/convert_sync_batch_norm.h>
#include <trireme/parallel/data/gradient_sync.h>
#include <trireme/parallel/data/module_buffers.h>
#include <trireme/parallel/data/reducer.h>
#include <trireme/parallel/data/replicas.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/ties.h>
#include <trireme/parallel/server/server_sync.h>
#include <trireme/parallel/tensor/split.h>
#include <trireme/parallel/tensor/split_module.h>
#include <trireme/precision/options.h>
#include <trireme/zero/parameter_coordinator.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::engine {

/// What the ranks of the tensor axis have whole, each of them: which ReduceGroups number adds up its gradients.
struct WholeParameters {
  int group = 0;
  /// The same instead of the program's group 1, 2, ..., whose other parameters are split among the tensor ranks. Empty
  /// if is_sum.
  std::vector<int> of_program = {};
  /// The gradients of the tensor ranks are summands (sequence parallelism), not the same.
  bool is_sum = false;

  /// Whether the tensor ranks have the parameters of this group whole.
  bool has(int reduce_group) const {
    return reduce_group == group || std::find(of_program.begin(), of_program.end(), reduce_group) != of_program.end();
  }
};

/// The parts of an engine. initialize() builds them; none is replaced afterwards.
struct Parts {
  std::shared_ptr<torch::nn::Module> model;
  std::optional<ClaimedModel> claim;
  LossFunction loss_function;
  device::Uploader uploader; // to the device that this rank trains on
  comm::Group group;         // data and context: the ranks that add up gradients
  comm::Group data;
  comm::Group pipe;
  comm::Group context;
  comm::Group tensor;
  comm::Group model_ranks; // pipe and tensor: the ranks that have one model together
  comm::Group stage;       // data, context and tensor: all that have the same layers
  comm::Group everyone;
  nlohmann::json axes; // axes_in_use() of the mesh
  int64_t seed = 0;    // the run's
  WholeParameters whole;
  int program_groups = 0;                     // of InitializeOptions::reduce_groups
  std::optional<tensor::SplitModel> ordinary; // a model that engine.tensor_parallel has split
  tensor::Placements split; // of the model's parameters and buffers of which each tensor rank has a part
  std::map<const void*, bucket::Placement> tiles;   // of parameters that are tiles of one (zero::TiledLinear)
  std::shared_ptr<pipeline::PipelineModule> layers; // null: a model in one piece
  std::unique_ptr<pipeline::Ties> ties;
  std::unique_ptr<pipeline::Executor> executor;
  config::BatchTriple batch;
  double clipping = 0;
  precision::PrecisionOptions precision;
  bool may_step_in_backward = false;
  bool several_reduce_groups = false; // on any rank
  bool shards_parameters = false;     // ZeRO stage 3 among several data ranks, or of one that keeps them elsewhere
  std::map<std::string, std::shared_ptr<offload::RankFolder>> offload_folders; // by nvme_path
  std::shared_ptr<offload::Traffic> offloaded;                                 // null: nothing is in files
  parallel::FlatBuffers buffers;
  std::optional<UnchangedModel> unchanged;
  parallel::FlatBuffers frozen;                        // sharded parameters that are not trained
  std::vector<parallel::ModuleBuffers> module_buffers; // of replicas, then of tensor ranks; empty: ranks keep their own
  std::optional<parallel::SyncedBatchNorms> synced_norms;
  std::unique_ptr<parallel::GradientSync> sync;
  parallel::server::ServerSync* server = nullptr;    // `sync`, if it is one
  parallel::ElasticAveragingSync* elastic = nullptr; // `sync`, if it is one
  int worker = 0; // of parameter servers, or of replicas that come and go, and how many there are
  int workers = 1;
  std::unique_ptr<parallel::Reducer> reducer;
  std::shared_ptr<optim::FlatOptimizer> optimizer;
  std::shared_ptr<zero::ParameterCoordinator> coordinator; // of sharded parameters, if there are any
  std::shared_ptr<optim::Schedule> schedule;
  bool rates_may_differ = false; // between ranks: the program decides them, not the configuration
  std::shared_ptr<data::RepeatingLoader> loader;
  std::unique_ptr<activations::Activations> activations; // null: they stay where they are
  nlohmann::json chosen_ways;         // what "auto" has chosen for activations, for checkpoints; null: nothing
  nlohmann::ordered_json config;      // as checkpoints have it: perhaps a whole run file
  nlohmann::ordered_json used_config; // the engine's, in use
  checkpoint::CheckpointOptions checkpoint;
  std::shared_ptr<const RunToken> run_token; // null: whoever saves may
  int64_t num_parameters = 0;

  Parts() = default;
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  at::Device device() const {
    return uploader.device();
  }
  bool parameters_are_sharded() const {
    return !buffers.empty() && buffers.front()->parameters_are_sharded();
  }
  /// Whether the executor runs the step. One stage with sharded parameters needs none.
  bool runs_schedule() const {
    return executor && (pipe.size() > 1 || !parameters_are_sharded());
  }
  bool looks_for_overflow() const {
    return precision.scales_loss() || (precision.compute == precision::Type::bf16 && precision.check_grad_overflow);
  }
  /// Whether all ranks of the data axis take a step as one, or each by itself.
  bool steps_together() const {
    return sync->step_group().size() == group.size();
  }
  /// All ranks that take a step as one, or skip it.
  const comm::Group& step_ranks() const {
    return steps_together() ? everyone : model_ranks;
  }
  /// Whether this rank tells the others of its model the loss: the last stage computes it, on all tensor ranks.
  bool tells_loss() const {
    return pipe.rank() == pipe.size() - 1 && tensor.rank() == 0;
  }
  /// Which part of the whole model's parameter this rank has, by the model's own word.
  bucket::Placement placement_of(const at::Tensor& parameter) const;
  /// Seconds of communication that nothing has hidden so far.
  double exposed_seconds() const {
    return reducer->exposed_seconds() + coordinator->exposed_seconds() + sync->step_exchange().exposed_seconds();
  }
  /// The loss function in the precision that was asked for.
  LossAndLogits loss_of(const data::Batch& micro_batch);
  /// The micro-batch on the device, its inputs in the type that is computed in.
  data::Batch prepared(data::Batch micro_batch);
  /// Lives while a forward or a loss is computed: autocast, and what becomes of activations. Null if there is neither.
  std::shared_ptr<void> forward_guard() const;
};

} // namespace trireme::engine
