#pragma once

#include <trireme/base/run_token.h>
#include <trireme/comm/world.h>
#include <trireme/config/auto_values.h>
#include <trireme/config/cuda_graph.h>
#include <trireme/config/engine_config.h>
#include <trireme/data/collate.h>
#include <trireme/data/dataset.h>
#include <trireme/data/loader.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/parameter_groups.h>
#include <trireme/mesh/mesh.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/optim/schedule.h>
#include <trireme/parallel/pipeline/module.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/shards/data_parallel/sync_factory.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::engine {

/// Arguments of initialize(): `config`, and either `model` and `loss`, or `pipeline`. The pipeline settings of `config`
/// replace those that the PipelineModule was made with.
struct InitializeOptions {
  std::shared_ptr<torch::nn::Module> model;
  LossFunction loss;
  /// A list of layers for the pipeline stages; initialize() builds it, loss included.
  std::shared_ptr<pipeline::PipelineModule> pipeline;
  config::EngineConfig config;
  /// Device of this rank; initialize() moves the model there, and batches follow. Default: that of
  /// World::device(), which is the GPU whose number is the rank's number on its host if libtorch sees GPUs, else
  /// the CPU. A device without an index (torch::kCUDA) is the thread's current one, as in PyTorch: call
  /// c10::cuda::set_device() first, or give an index.
  std::optional<at::Device> device;
  /// Records the steps of train_batch() as CUDA graphs, and replays them: one launch for forward and backward, one for
  /// the end (step_graph.h). Off by default: host code of `model` and `loss` runs only while a step is recorded. A loss
  /// that depends on anything but tensors (a counter, a log line) needs it off. Kernels of forward(), backward() and
  /// step() are launched one by one.
  config::CudaGraph cuda_graph = config::CudaGraph::off;
  /// If given, initialize() builds the distributed loader, and train_batch() reads from it.
  std::shared_ptr<const data::Dataset> training_data;
  /// Instead of training_data: this rank's micro-batches, epoch after epoch, from a loader of your own
  /// (data::from_torch_loader(), data::ReplayLoader). Checkpoints keep its place; a load reads the begun epoch again.
  std::shared_ptr<data::RepeatingLoader> training_loader = nullptr;
  bool shuffle = true;
  /// The program's own sampler instead of `shuffle`: the indices of an epoch's samples (data::SamplerOptions::order),
  /// which are divided among the ranks. Checkpoints save the position; a load refuses the position of another order.
  std::function<std::vector<int64_t>(int64_t epoch)> order;
  /// Makes a micro-batch of its samples; default: Dataset::get() of all of them.
  data::Collate collate;
  /// Parameters with their own lr or weight decay, in addition to the optimizer in `config`.
  std::vector<ParameterGroup> parameter_groups;
  /// A torch optimizer that replaces "optimizer" in `config`: its class, options and groups, with the same arithmetic.
  /// For a model in one piece. Accepted are AdamW, Adam (without amsgrad), SGD, RMSprop and Adagrad that have not
  /// stepped, with groups that differ only in lr and weight decay.
  ///
  /// It is read once, except the lr of its groups: if `config` has no scheduler, each step uses their current values,
  /// so schedulers of torch::optim work on it. Do not step it. Gradients are not clipped unless `config` says so.
  std::shared_ptr<const torch::optim::Optimizer> optimizer;
  /// Returns the lr of optimizer step `step`, counted from 1, instead of a scheduler in `config`. It must be the same
  /// on every rank.
  std::function<double(int64_t step)> lr = nullptr;
  /// Makes the GradientSync of the data ranks; default: by `config`. {.make = f} is the program's own, without ZeRO,
  /// "step_in_backward" and "parameter_averaging". With server::worker_sync() this process is a worker of parameter
  /// servers, with replica_sync() an elastic replica; see Engine::workers().
  std::optional<parallel::SyncFactory> sync = std::nullopt;
  /// Returns which part of a whole parameter this rank holds, for layers that the program itself spreads over ranks;
  /// default: all of it. Every gradient is averaged over the data ranks, whatever its group. Not for frozen parameters.
  std::function<bucket::Placement(const std::string& name, const at::Tensor& parameter)> placement = nullptr;
  /// Makes the groups that Placement::reduce_group counts from 1, by data.subgroup(). Ranks of a group hold the same
  /// elements.
  std::function<std::vector<comm::Group>(const comm::Group& data)> reduce_groups = nullptr;
  /// The mesh that the model was built for (mesh::training_mesh()). Default: the pipeline's stages, the tensor ranks of
  /// config.tensor_parallel, and data-parallel replicas.
  std::optional<mesh::Mesh> mesh = std::nullopt;
  /// The model splits sequences between its split layers (tensor::Ranks::sequence_parallel). Gradients of parameters
  /// that tensor ranks have whole are then summed over these ranks.
  bool sequence_parallel = false;
  /// Makes the store of this rank's masters and optimizer states between steps, and a second one for its shards of
  /// parameters at ZeRO stage 3. Default: by EngineConfig::offload. On a GPU a store may keep them on the host:
  /// StateStore::on_host().
  std::function<std::unique_ptr<bucket::StateStore>()> state_store = nullptr;
  /// Micro-batches of training_data that a thread prefetches; 0: no thread.
  int64_t prefetch = 2;
  /// The configuration that every checkpoint keeps; default: `config` as used, config::to_json(). For example a whole
  /// run file.
  std::optional<nlohmann::ordered_json> stored_config;
  /// The right of this run to write its run folder, claimed by rank 0. After a later run has claimed the folder,
  /// save_checkpoint() throws PeerError on every rank. Default: no other run is expected to write there. Give the same
  /// token to other writers of the folder, and call check() before each write.
  std::shared_ptr<const RunToken> run_token = nullptr;
};

/// An engine and its parts, for structured bindings:
///   auto [engine, optimizer, loader, lr_scheduler] = trireme::initialize(world, {...});
struct Initialized {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<optim::FlatOptimizer> optimizer;
  /// nullptr without training_data and training_loader.
  std::shared_ptr<data::RepeatingLoader> loader;
  std::shared_ptr<optim::Schedule> lr_scheduler;
};

/// Composes mesh, flat buffers, reducer, optimizer, schedule and loader according to `config`. With "bf16": {"enabled":
/// "auto"} it first measures both types (resolve_precision(); call that before, to keep a checkpoint's type).
/// Collective. Errors: InputError for a configuration that does not fit the number of ranks.
Initialized initialize(comm::World& world, const InitializeOptions& options);

/// Reads a DeepSpeed JSON file. `known` gives the values of "auto":
///   read_config("ds_config.json", {.micro_batch = 4, .steps = 1000, .hidden = 768})
config::EngineConfig read_config(const std::filesystem::path& file, const config::AutoValues& known = {});

} // namespace trireme::engine
