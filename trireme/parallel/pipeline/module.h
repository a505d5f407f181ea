#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/layer.h>
#include <trireme/parallel/pipeline/loss.h>
#include <trireme/parallel/pipeline/options.h>
#include <trireme/parallel/pipeline/partition.h>
#include <trireme/parallel/pipeline/profile.h>

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// A parameter that several layers share, with this stage's copies.
struct TiedParameter {
  std::string key;
  /// Its name in checkpoints, the first layer's.
  std::string name;
  /// This stage's copies: one, unless layers of one stage tie only some of their attributes.
  Tensors copies;
  /// Stages with a copy, ascending. The first stage's first copy is saved and counted in norms.
  std::vector<int> owners;
};

/// Hooks around layers, for mixed precision and for ZeRO stage 3, which gathers parameters only while they are
/// used.
struct LayerHooks {
  /// Called before a chunk's forward or the loss; the returned object lives until it ends.
  std::function<std::shared_ptr<void>()> around = nullptr;
  /// Called after a layer with a module was built and initialised.
  std::function<void(torch::nn::Module&)> built = nullptr;
  /// Called around each forward of a layer with a module, also when it is recomputed.
  std::function<void(torch::nn::Module&)> before = nullptr;
  std::function<void(torch::nn::Module&, const Tensors& outputs)> after = nullptr;
  /// Called before a schedule runs, with a number for each forward, backward and half of a backward that this stage
  /// computes, in order. Computations with the same number use the same layers in the same order.
  std::function<void(std::vector<int> computations)> schedule = nullptr;
  /// Called before each of these computations.
  std::function<void()> computation = nullptr;
};

/// A model as a list of layers; each stage of a pipeline builds only its own.
///
///   auto model = std::make_shared<PipelineModule>(LayerList{
///       LayerSpec<torch::nn::Linear>(784, 128), torch::nn::ReLU(), [](at::Tensor x) { return x * 2; },
///       LayerSpec<torch::nn::Linear>(128, 10)}, loss, options);
///
/// build() builds the layers: initialize() calls it, or the caller does for a model in one process. Parameters are
/// named after the layer's index in the full list ("0.weight") or the layer's own name, whatever the partition: a
/// checkpoint fits any number of stages. Source: Huang et al. 2019, arXiv:1811.06965; layer and tie semantics follow
/// DeepSpeed's PipelineModule.
class PipelineModule : public torch::nn::Module {
 public:
  using Loss = pipeline::Loss;

  /// Without a loss, the last layer's first output is the loss; only evaluations that return logits use its other
  /// outputs.
  explicit PipelineModule(LayerList layers, Loss loss = nullptr, PipelineOptions options = {});

  /// Sets a micro-batch to measure layers with, for partition "profile" and "memory". Call it before build().
  void set_sample_inputs(Tensors inputs) { sample_inputs_ = std::move(inputs); }
  /// Builds the layers of `pipe.rank()` of `pipe.size()` stages. Call it once. Collective over `pipe`. `micro_batches`:
  /// per step, for partition "memory"; 0: as many as there are stages. `replicas`: with several pipelines, the ranks of
  /// this stage in all of them; the first pipeline's measurement decides for all. Errors: InputError for an impossible
  /// partition, with the choices; for modules in the list that share trained tensors across stages, or memory without
  /// being one tensor.
  void build(const comm::Group& pipe = {}, int micro_batches = 0, const comm::Group& replicas = {});

  /// Overrides options() with those of a configuration. initialize() calls it, before build().
  void configure(const PipelineKeys& keys);
  /// Set `built` before build(); the others apply from the next forward on.
  void set_hooks(LayerHooks hooks) { hooks_ = std::move(hooks); }
  const LayerHooks& hooks() const { return hooks_; }
  /// The modules of this stage's layers, in order, without repetition.
  std::vector<std::shared_ptr<torch::nn::Module>> layer_modules() const;

  /// Runs the full model in one process, chunk after chunk. Needs a pipe of one stage.
  Tensors forward(const Tensors& inputs);
  at::Tensor forward(const at::Tensor& input);
  /// Runs one chunk of this stage. `micro_batch` counts all micro-batches of this replica; seed_layers uses it.
  Tensors forward_chunk(int chunk, const Tensors& inputs, int64_t micro_batch);
  at::Tensor loss(const Tensors& outputs, const Tensors& targets) const;
  /// Runs the last chunk and the loss: in one, if the loss has such a form (Loss::with_last_layer()).
  at::Tensor forward_to_loss(int chunk, const Tensors& inputs, int64_t micro_batch, const Tensors& targets);
  /// The last layer's outputs, without the loss if it is one of them.
  Tensors logits(const Tensors& outputs) const;

  const PipelineOptions& options() const { return options_; }
  const LayerList& layers() const { return layers_; }
  /// Layers of the virtual stages: virtual stage v = chunk * stages + stage has layers [bounds[v], bounds[v + 1]).
  const Partition& partition() const { return partition_; }
  int stage() const { return stage_; }
  int stages() const { return stages_; }
  /// Tied parameters with more than one copy.
  const std::vector<TiedParameter>& ties() const { return ties_; }
  /// Parameters whose gradients are final only after all backwards: tied ones, and those that several chunks
  /// share.
  Tensors late_parameters() const;
  /// The name of a parameter or buffer in checkpoints: the first layer's if several share it.
  const std::string& saved_name(const std::string& parameter) const;
  /// Keys of all ties that span several stages, with their stages: the same on every rank.
  std::map<std::string, std::vector<int>> tie_owners() const;
  /// Layer, type, stage, parameters and cost of every layer as a table.
  std::string describe() const;

  /// Names of the modules of this stage's layers and of their submodules: the prefixes of their parameters.
  std::vector<std::string> module_names() const;
  /// Aliases: further names of tensors that this stage saves under another name, with that name.
  const std::map<std::string, std::string>& saved_names() const { return saved_names_; }

  void train(bool on = true) override;
  /// Called by torch::save(). Errors: InputError with several stages, where this rank has a part of the model: see
  /// Engine::gather_model().
  void save(torch::serialize::OutputArchive& archive) const override;

 private:
  struct OwnLayer {
    int64_t index;
    BuiltLayer built;
    const char* type; ///< for notes: lives for ever
  };

  int stage_of(int64_t layer) const;
  void choose_partition(const comm::Group& pipe, int micro_batches, const comm::Group& replicas);
  std::vector<std::vector<double>> memory_by_part(const LayerProfile& measured, int micro_batches) const;
  void join_given_modules(const comm::Group& pipe);
  void drop_foreign_modules();
  void build_layer(int64_t index, std::vector<OwnLayer>& chunk);
  void register_tensors(const std::string& prefix, const torch::nn::Module& module);
  void add_ties(const std::string& prefix, int64_t index, int64_t first, const torch::nn::Module& module);
  std::string name_of(int64_t layer) const;
  // With a WithLoss the last layer may return the loss instead of its outputs. Shared: it may be recomputed.
  struct WithLoss {
    Tensors targets;
    bool is_loss = false; // what the last layer returned
  };
  using SharedWithLoss = std::shared_ptr<WithLoss>;
  Tensors run_chunk(int index, const Tensors& inputs, int64_t micro_batch, const SharedWithLoss& with_loss);
  Tensors run(const std::vector<OwnLayer>& chunk, size_t first, size_t last, Tensors tensors, int64_t micro_batch,
              const SharedWithLoss& with_loss) const;
  Tensors call(const OwnLayer& part, const Tensors& inputs, int64_t micro_batch, WithLoss* with_loss) const;
  static void check_loss(const at::Tensor& value);

  LayerList layers_;
  Loss loss_;
  PipelineOptions options_;
  Tensors sample_inputs_;
  LayerHooks hooks_;
  Partition partition_;
  int stage_ = 0;
  int stages_ = 0;
  std::vector<std::vector<OwnLayer>> chunks_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared_; // by tie key
  std::vector<TiedParameter> ties_;
  std::map<std::string, std::string> saved_names_;
  std::map<const void*, size_t> registered_; // tensors, with the number of chunks at the time
  Tensors in_several_chunks_;
};

} // namespace trireme::pipeline
