#pragma once

#include <trireme/base/json.h>
#include <trireme/config/cuda_graph.h>
#include <trireme/config/engine_config.h>
#include <trireme/config/freeze.h>
#include <trireme/config/lora.h>
#include <trireme/data/options.h>
#include <trireme/models/options.h>
#include <trireme/parallel/context/options.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::estimate {
struct Conditions;
struct Model;
} // namespace trireme::estimate

namespace trireme::config {

/// What a model can do in a run, which decides what it goes together with.
struct ModelTraits {
  /// It can be built as a list of layers: for stages, and to recompute or seed layers one by one.
  bool layers = false;
  /// It is built as one in every layout.
  bool only_layers = false;
  /// Tensor ranks can share its layers, and context ranks its sequences.
  bool tensor = false;
  bool context = false;
  bool writes_text = false;
};

/// A section whose type a program has registered (train/registry.h).
struct ProgramSection {
  /// What the program made of its keys.
  std::shared_ptr<const void> made;
  /// The section with absolute paths.
  nlohmann::ordered_json resolved;
};

struct ModelConfig {
  enum class Kind { gpt, llama, bert, cnn, alexnet, of_program };
  Kind kind = Kind::gpt;
  /// Its name in the run file.
  std::string type = "gpt";
  ModelTraits traits;
  /// Set for the chosen kind; the others keep their defaults.
  models::GptOptions gpt;
  models::LlamaOptions llama;
  models::BertOptions bert;
  models::CnnOptions cnn;
  models::AlexNetOptions alexnet;
  ProgramSection own;
  /// A program's model as an estimate sees it; nullptr: unknown.
  std::function<estimate::Model(const estimate::Conditions&)> describe = nullptr;

  /// A gpt or llama: it predicts the next token.
  bool is_language() const { return kind == Kind::gpt || kind == Kind::llama; }
  /// A language model or a bert: it reads tokens.
  bool reads_tokens() const { return is_language() || kind == Kind::bert; }
  /// The chosen language model.
  models::LanguageOptions language() const;
  /// The sizes of what reads_tokens(); vocab_size 0: the tokenizer's.
  models::TransformerShape shape() const;
  /// Layers of what reads_tokens(), with Hugging Face's names.
  std::vector<models::LayerShape> layer_shapes() const;
  void set_vocab_size(int64_t size);
  void set_seed(int64_t seed);
  /// Of a built-in type.
  std::filesystem::path& init_from();
  const std::filesystem::path& init_from() const;
  /// Adapters of what reads_tokens().
  models::LoraOptions& lora();
  const models::LoraOptions& lora() const;
};

/// How the data ranks agree on one model: "parallel.sync". Its values are in RunConfig::engine, averaging and server.
struct SyncConfig {
  static constexpr int64_t kEvery = 50;
  std::string kind = "all_reduce";
  std::optional<int64_t> every;
  std::optional<std::string> outer;
  std::optional<bool> elastic;
  parallel::ServerOptions server;
  /// Protocol of servers and workers: the scheme of the addresses of servers that trireme train starts ("tcp",
  /// "grpc", "grpcs").
  std::string transport = "tcp";
};

struct ParallelConfig {
  int64_t pipe = 1;
  int64_t tensor = 1;
  /// Ranks that share the tokens of each sample.
  int64_t context = 1;
  bool sequence_parallel = false;
  context::Kind context_kind = context::Kind::ring;
  /// Data-parallel replicas; absent ("auto"): as many as the number of ranks allows.
  std::optional<int64_t> data;
  /// Pipeline schedule: naive, gpipe, 1f1b, interleaved or zero-bubble.
  std::string schedule = "1f1b";
  SyncConfig sync;
  /// Parts of the model per stage; absent: 2 for interleaved, else 1.
  std::optional<int64_t> chunks;

  /// Ranks that train one replica of the model.
  int64_t ranks_of_replica() const { return pipe * context * tensor; }
};

/// A text that the trained model generates at the end of the run.
struct SampleConfig {
  std::string prompt;
  int64_t tokens = 200;
  /// 0: always the most likely token.
  double temperature = 0.8;
  /// Choose among this many most likely tokens; 0: among all.
  int64_t top_k = 0;
};

struct TrainingConfig {
  /// Optimizer steps of the whole run.
  int64_t steps = 0;
  int64_t seed = 1234;
  /// "auto", "cpu", "cuda" or "cuda:K": see device/choose.h.
  std::string device = "auto";
  /// On GPUs: products of fp32 may be computed in TF32 (precision/tf32.h).
  bool tf32 = true;
  /// On a GPU: forward and backward of a step are replayed as one launch. Automatic: for models of Trireme's.
  CudaGraph cuda_graph = CudaGraph::automatic;
  /// Steps between evaluations on the validation data; 0: only at the end.
  int64_t eval_every = 0;
  /// Micro-batches a rank reads in one evaluation; 0: all of the validation data.
  int64_t eval_batches = 0;
  /// Steps between checkpoints; 0: only at the end.
  int64_t checkpoint_every = 0;
  /// How many checkpoints are kept; 0: all.
  int64_t keep_checkpoints = 3;
  std::optional<SampleConfig> sample;
  /// Hugging Face folder written at the end; empty: none.
  std::filesystem::path export_to;
  FreezeOptions freeze;
  std::optional<LoraConfig> lora;
};

/// A run file: what `trireme train RUN.json` does.
struct RunConfig {
  ModelConfig model;
  data::DataOptions data;
  /// Where data.kind is of_program.
  ProgramSection own_data;
  ParallelConfig parallel;
  TrainingConfig training;
  EngineConfig engine;
  /// How layers are built where builds_layers(), from `parallel`, engine.pipeline and the seed.
  pipeline::PipelineOptions pipeline;
  /// Whether the model is built as a list of layers: for several stages, or because layers are recomputed or seeded one
  /// by one.
  bool builds_layers() const {
    return model.traits.only_layers || pipeline.stages > 1 || pipeline.activation_checkpoint_interval > 0 ||
           pipeline.seed_layers;
  }

  /// Files of data, tokenizer and init_from that do not exist, where Files::may_be_absent.
  std::vector<std::filesystem::path> absent_files;

  /// Notes on keys that have no effect or may be a mistake, engine.notes included.
  std::vector<std::string> notes;

  /// An equivalent run file that works in any folder: overrides applied, the engine's file
  /// inlined, paths absolute, defaults written out. Reading it again gives this RunConfig.
  /// It is stored in the run's folder and in each checkpoint.
  nlohmann::ordered_json resolved;
};

/// Whether files that training reads must exist: data, tokenizer, init_from. An estimate or a plan opens none of them.
enum class Files { must_exist, may_be_absent };

/// The types of models and data that every program knows.
struct RunTypes;
const RunTypes& built_in_types();

/// Reads a run file. `overrides` are "path=value" as after --set: the path has dots, the
/// value is JSON or else a string; the last one wins.
///
/// Relative paths are relative to the folder of the file that contains them; a path that does not
/// exist there is looked up in the working directory.
/// Errors: InputError naming file, line, column and key, or both keys when two values contradict
/// each other.
RunConfig read_run_file(const std::filesystem::path& path, const std::vector<std::string>& overrides = {},
                        Files files = Files::must_exist, const RunTypes& types = built_in_types());

/// Reads a run file's content, with paths relative to `folder`; for the `resolved`
/// configuration of a checkpoint, whose files may be absent.
RunConfig read_run(JsonNode root, const std::filesystem::path& folder, const std::vector<std::string>& overrides = {},
                   const RunTypes& types = built_in_types());

} // namespace trireme::config
