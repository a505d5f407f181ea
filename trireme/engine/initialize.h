#pragma once

#include <trireme/base/run_token.h>
#include <trireme/comm/world.h>
#include <trireme/config/auto_values.h>
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

/// What initialize() needs: `config`, and either `model` and `loss` or `pipeline`. What `config` says of the pipeline
/// takes the place of what the PipelineModule was made with.
struct InitializeOptions {
  std::shared_ptr<torch::nn::Module> model;
  LossFunction loss;
  /// A list of layers to be spread over pipeline stages; built here, loss included.
  std::shared_ptr<pipeline::PipelineModule> pipeline;
  config::EngineConfig config;
  /// Where this rank trains: initialize() moves the model there, and batches follow. Default: as device::choose("auto")
  /// says, the GPU with the number of the rank on its host where libtorch sees GPUs, else the CPU. A device without a
  /// number (torch::kCUDA) is the thread's current one, as in PyTorch: call c10::cuda::set_device() first, or give a
  /// number.
  std::optional<at::Device> device;
  /// Given: initialize() builds the distributed loader and train_batch() reads from it.
  std::shared_ptr<const data::Dataset> training_data;
  bool shuffle = true;
  /// The client's own sampler instead of `shuffle`: the numbers of an epoch's samples, see data::SamplerOptions::order.
  /// The ranks share them out. Checkpoints save the place; a load refuses one of another order.
  std::function<std::vector<int64_t>(int64_t epoch)> order;
  /// Makes each micro-batch of its samples; default: Dataset::get() of all of them.
  data::Collate collate;
  /// Parameters with an lr or a weight decay of their own, beside what `config` says of the optimizer.
  std::vector<ParameterGroup> parameter_groups;
  /// Instead of an "optimizer" in `config`, for a model in one piece: its class, options and groups, with the same
  /// arithmetic. Accepted are AdamW, Adam (without amsgrad), SGD, RMSprop and Adagrad that have not stepped yet, whose
  /// groups differ in lr and weight decay only. It is read once, here, but for the lr of its groups: where `config` has
  /// no scheduler each step uses those that they have then, so torch::optim's schedulers work on it. It is not to be
  /// stepped. Gradients are not clipped unless `config` says so.
  std::shared_ptr<const torch::optim::Optimizer> optimizer;
  /// The lr of optimizer step number `step`, counted from 1, instead of a scheduler in `config`: the same on every
  /// rank.
  std::function<double(int64_t step)> lr = nullptr;
  /// Makes the GradientSync of the data ranks; default: as `config` says. {.make = f}: the program's own, not with
  /// ZeRO, "step_in_backward" or "parameter_averaging". server::worker_sync() and replica_sync(): this process is a
  /// worker of parameter servers, or an elastic replica; see Engine::workers().
  std::optional<parallel::SyncFactory> sync = std::nullopt;
  /// Says which part of the whole model's parameter this rank holds; default: all of it. For layers that the client
  /// spreads over ranks by itself. The mean over data ranks is taken of every gradient, whatever its group. Not for
  /// frozen parameters.
  std::function<bucket::Placement(const std::string& name, const at::Tensor& parameter)> placement = nullptr;
  /// Makes the groups that Placement::reduce_group counts from 1 on, by data.subgroup(): in each the ranks that hold
  /// the same elements.
  std::function<std::vector<comm::Group>(const comm::Group& data)> reduce_groups = nullptr;
  /// The mesh that the model was built for (mesh::training_mesh()). Default: the pipeline's stages, the tensor ranks of
  /// config.tensor_parallel, and data-parallel replicas.
  std::optional<mesh::Mesh> mesh = std::nullopt;
  /// The model splits sequences between its split layers (tensor::Ranks::sequence_parallel): gradients of what the
  /// tensor ranks have whole are summed over them.
  bool sequence_parallel = false;
  /// Makes what holds this rank's masters and optimizer states between steps, and another one for its shards of the
  /// parameters at ZeRO stage 3; default: as EngineConfig::offload says. On a GPU a store may keep them on the host:
  /// StateStore::on_host().
  std::function<std::unique_ptr<bucket::StateStore>()> state_store = nullptr;
  /// Micro-batches of training_data that a thread makes ahead; 0: none, they are made when asked for.
  int64_t prefetch = 2;
  /// Kept in every checkpoint; default: `config` as it is used, config::to_json(). A run keeps its whole run file here.
  std::optional<nlohmann::ordered_json> stored_config;
  /// This start's right to write its run folder, which rank 0 has claimed: save_checkpoint() throws PeerError on every
  /// rank once a later start has claimed it.
  /// Default: nobody else is expected to write there. Give the same one to what else writes the folder, and check()
  /// before each write.
  std::shared_ptr<const RunToken> run_token = nullptr;
};

/// An engine and what it is made of; usable with structured bindings:
///   auto [engine, optimizer, loader, lr_scheduler] = trireme::initialize(world, {...});
struct Initialized {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<optim::FlatOptimizer> optimizer;
  /// nullptr without training_data.
  std::shared_ptr<data::RepeatingLoader> loader;
  std::shared_ptr<optim::Schedule> lr_scheduler;
};

/// Composes mesh, flat buffers, reducer, optimizer, schedule and loader as `config` says. With "bf16": {"enabled":
/// "auto"} it first measures (resolve_precision(); call it before, to keep a checkpoint's type). Collective. Errors:
/// InputError for a configuration that does not fit the number of ranks.
Initialized initialize(comm::World& world, const InitializeOptions& options);

/// Reads a DeepSpeed JSON file. `known` is what "auto" stands for in it:
///   read_config("ds_config.json", {.micro_batch = 4, .steps = 1000, .hidden = 768})
config::EngineConfig read_config(const std::filesystem::path& file, const config::AutoValues& known = {});

} // namespace trireme::engine
