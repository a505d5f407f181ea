#pragma once

#include <trireme/base/json.h>
#include <trireme/comm/world.h>
#include <trireme/config/run_types.h>
#include <trireme/data/make_dataset.h>
#include <trireme/engine/engine.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>
#include <trireme/plan/estimate/model.h>
#include <trireme/train/program.h>
#include <trireme/train/task.h>

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::train {

/// The keys of a section whose type a program has registered. What it does not read is refused, with line and column.
class Keys : public ObjectReader {
 public:
  Keys(const JsonNode& section, const config::RunPaths& paths) : ObjectReader(section), paths_(paths) {}

  /// The value of a key, or the default where it is absent or null: a bool, a number, a text, or a vector of these.
  /// Errors: InputError for a value of another type.
  template <typename T>
  auto get(const std::string& key, const T& default_value) {
    if constexpr (std::is_same_v<T, bool>) {
      return ObjectReader::get<bool>(key, default_value);
    } else if constexpr (std::is_integral_v<T>) {
      return ObjectReader::get<int64_t>(key, default_value);
    } else if constexpr (std::is_floating_point_v<T>) {
      return ObjectReader::get<double>(key, default_value);
    } else if constexpr (std::is_convertible_v<T, std::string>) {
      return ObjectReader::get<std::string>(key, default_value);
    } else {
      return ObjectReader::get<T>(key, default_value);
    }
  }
  /// A whole number of at least `least`. Errors: InputError for another one.
  int64_t at_least(int64_t least, const std::string& key, int64_t default_value);
  /// The absolute path of a file or folder; it starts at the run file's folder, else at the working directory. Empty
  /// where the key is absent. Errors: InputError if there is none.
  std::filesystem::path path(const std::string& key);
  /// The same for a list, or one alone.
  std::vector<std::filesystem::path> paths(const std::string& key);
  /// Throws InputError with the place of the key, or of the section where it is absent.
  [[noreturn]] void fail(const std::string& key, const std::string& happened, const std::string& next = "") const;

  /// The section with absolute paths.
  nlohmann::ordered_json resolved() const;

 private:
  const config::RunPaths& paths_;
  nlohmann::ordered_json changed_ = nlohmann::ordered_json::object();
};

/// A model in one piece.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  /// The mean loss of a micro-batch, with or without logits.
  engine::LossFunction loss;
  /// Tokens per sample, for tokens_per_s; 0: samples are counted.
  int64_t tokens_per_sample = 0;
  /// Divides a loss before it is shown: data::Datasets::bytes_per_token makes nats per byte.
  double loss_divisor = 1;
  /// Shown after a loss: "nats".
  std::string loss_unit = "";
  /// For classifiers: number of the first `Batch::samples` rows that are right, for val_accuracy. [], int64, on the
  /// device of batch and model; called without gradients.
  std::function<at::Tensor(const data::Batch&)> count_right = nullptr;
};

/// A model as a list of layers: pipeline stages, and recomputation and seeds of layers. Its parameters have the same
/// names in every layout.
struct Layers {
  pipeline::LayerList layers;
  pipeline::PipelineModule::Loss loss;
  /// As Model's.
  int64_t tokens_per_sample = 0;
  double loss_divisor = 1;
  std::string loss_unit = "";
  /// For classifiers: number of rows of the outputs that are right, for val_accuracy. [], int64; called without
  /// gradients on the last stage.
  std::function<at::Tensor(const pipeline::Tensors& outputs, const pipeline::Tensors& targets)> count_right = nullptr;
};

/// What is known when a rank builds its model.
struct ModelContext {
  const config::RunConfig& run;
  const data::Datasets& data;
  /// The ranks that share its layers and sequences, for types with ModelType::tensor and context.
  models::ModelRanks ranks = {};
};

template <typename Make>
concept MakesModel = std::convertible_to<std::invoke_result_t<Make&, const ModelContext&>, Model>;
template <typename Make>
concept MakesLayers = std::convertible_to<std::invoke_result_t<Make&, const ModelContext&>, Layers>;

/// A model type with its keys read: how a rank builds it, and what else is known of it.
class ModelType {
 public:
  /// `make`: a function of a ModelContext that returns a Model or Layers. Each rank calls it once, after
  /// torch::manual_seed() with "training.seed" (tensor ranks draw the same numbers).
  template <typename Make>
    requires(!std::same_as<std::decay_t<Make>, ModelType> && (MakesModel<Make> || MakesLayers<Make>))
  ModelType(Make make) {
    if constexpr (MakesLayers<Make>) {
      layers_ = std::move(make);
    } else {
      model_ = std::move(make);
    }
  }

  /// The layers' parameters and activations (plan/estimate/model.h), for `estimate` and the check of memory before a
  /// run. nullptr: neither is done.
  std::function<estimate::Model(const estimate::Conditions&)> describe = nullptr;
  /// It is split among ModelContext::ranks: parallel.tensor and parallel.context may be more than 1.
  bool tensor = false;
  bool context = false;

  bool has_layers() const { return layers_ != nullptr; }
  Task make(const ModelContext& context) const;

 private:
  std::function<Model(const ModelContext&)> model_ = nullptr;
  std::function<Layers(const ModelContext&)> layers_ = nullptr;
};

/// What is known when a rank opens its data.
struct DataContext {
  const config::RunConfig& run;
  comm::World& world;
  /// This rank's place among those that read different samples, and the rows of a micro-batch: for a loader of your
  /// own (data::Datasets::loader). The engine's loader does this for a Dataset.
  int64_t rank = 0;
  int64_t replicas = 1;
  int64_t micro_batch = 1;
  /// Where the tokens of texts are kept for the other ranks and the next start; empty: every rank makes its own.
  std::filesystem::path token_cache = {};
};

/// The types of models and data that a program trains: those of `trireme`, and its own.
///
///   trireme::Registry registry;
///   registry.model("mlp", [](trireme::Keys& keys) {
///     const int64_t width = keys.at_least(1, "width", 32);
///     return [width](const trireme::ModelContext&) {
///       Mlp net(width);
///       return trireme::train::Model{net.ptr(), [net](const trireme::data::Batch& batch) mutable {
///                                      return torch::mse_loss(net(batch.input()), batch.target());
///                                    }};
///     };
///   });
///
/// A reader is called in each process that reads the run file: the one that starts the ranks, which reports its errors
/// once, and every rank. What it returns is called in the ranks. docs/own_model.md.
class Registry {
 public:
  using ReadModel = std::function<ModelType(Keys& keys)>;
  using MakeData = std::function<data::Datasets(const DataContext& context)>;
  using ReadData = std::function<MakeData(Keys& keys)>;

  Registry();

  /// Registers "model": {"type": `type`}. Errors: InputError for a name that is taken or empty.
  void model(const std::string& type, ReadModel read);
  /// Registers "data": {"type": `type`}. The keys shuffle and prefetch are read before, as for every type.
  void data(const std::string& type, ReadData read);

  const config::RunTypes& types() const { return types_; }
  /// The model of a run file read with types(), with the parameters frozen that "training.freeze" matches.
  Task make_task(const ModelContext& context) const;
  /// Its data. Collective over the world. Errors: InputError on every rank if one cannot open its own.
  data::Datasets open_data(const DataContext& context) const;

 private:
  config::RunTypes types_;
  std::map<std::string, std::function<Task(const ModelContext&)>> models_; ///< by ModelConfig::type
};

} // namespace trireme::train
