#include <trireme/config/run_file.h>

#include <trireme/base/text.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/key_check.h>
#include <trireme/config/run_checks.h>

#include <algorithm>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";

// Turns the paths of a run file into absolute ones.
class Paths {
 public:
  /// `absent`: collects files that do not exist; nullptr: all must.
  Paths(fs::path folder, std::vector<fs::path>* absent) : folder_(std::move(folder)), absent_(absent) {}

  fs::path find(const JsonNode& node, const std::string& text) const {
    if (text.empty()) {
      node.fail("the path is empty");
    }
    const fs::path beside = fs::absolute(folder_ / text).lexically_normal();
    const fs::path here = fs::absolute(text).lexically_normal();
    std::error_code ignored;
    if (fs::exists(beside, ignored)) {
      return beside;
    }
    if (fs::exists(here, ignored)) {
      return here;
    }
    if (absent_ == nullptr) {
      node.fail(concat("there is no file ", beside.string(),
                       here == beside ? "" : concat(", and no ", here.string(), " either")),
                "A relative path starts at the folder of the run file, else at the working directory."
                " What the examples train on comes with \"trireme data fetch\".");
    }
    absent_->push_back(beside);
    return beside;
  }

  fs::path one(const Values& values, const std::string& key) const {
    const JsonNode* node = values.find(key);
    return node == nullptr ? fs::path() : find(*node, node->as_string());
  }

  std::vector<fs::path> all(const Values& values, const std::string& key) const {
    std::vector<fs::path> out;
    for (const std::string& text : values.get(key, std::vector<std::string>())) {
      out.push_back(find(*values.find(key), text));
    }
    return out;
  }

 private:
  fs::path folder_;
  std::vector<fs::path>* absent_;
};

bool has_text(const JsonNode& node, std::string_view text) {
  return node.kind() == JsonNode::Kind::string && node.as_string() == text;
}

std::string type_of(const JsonNode& root, const char* section) {
  return root.find(section)->find("type")->as_string();
}

void read_gpt(const Values& values, models::GptOptions& gpt) {
  gpt.layers = values.get("layers", gpt.layers);
  gpt.hidden = values.get("hidden", gpt.hidden);
  gpt.heads = values.get("heads", gpt.heads);
  gpt.sequence_length = values.get("sequence_length", gpt.sequence_length);
  gpt.vocab_size = values.get("vocab_size", gpt.vocab_size);
  gpt.tie_embeddings = values.get("tie_embeddings", gpt.tie_embeddings);
  gpt.dropout = values.get("dropout", gpt.dropout);
}

void read_llama(const Values& values, models::LlamaOptions& llama) {
  llama.layers = values.get("layers", llama.layers);
  llama.hidden = values.get("hidden", llama.hidden);
  llama.heads = values.get("heads", llama.heads);
  llama.kv_heads = values.get("kv_heads", llama.kv_heads);
  llama.head_dim = values.get("head_dim", llama.head_dim);
  llama.intermediate = values.get("intermediate", llama.intermediate);
  llama.sequence_length = values.get("sequence_length", llama.sequence_length);
  llama.vocab_size = values.get("vocab_size", llama.vocab_size);
  llama.rope_theta = values.get("rope_theta", llama.rope_theta);
  if (const JsonNode* scaling = values.find("rope_scaling")) {
    llama.rope_scaling = read_rope_scaling(*scaling);
  }
  llama.max_positions = values.get("max_positions", llama.max_positions);
  llama.rms_norm_eps = values.get("rms_norm_eps", llama.rms_norm_eps);
  llama.attention_bias = values.get("attention_bias", llama.attention_bias);
  llama.attention_output_bias = values.get("attention_output_bias", llama.attention_output_bias);
  llama.mlp_bias = values.get("mlp_bias", llama.mlp_bias);
  llama.qk_norm = values.get("qk_norm", llama.qk_norm);
  llama.window = values.get("window", llama.window);
  llama.first_window_layer = values.get("first_window_layer", llama.first_window_layer);
  llama.tie_embeddings = values.get("tie_embeddings", llama.tie_embeddings);
}

// Where the folder's description is, fills in what the run file leaves out: the type here, other keys in read_model().
std::optional<HuggingFaceModel> read_from(JsonNode& root, const Paths& paths) {
  JsonNode* model = root.is_object() ? root.at("model") : nullptr;
  const JsonNode* from = model != nullptr && model->is_object() ? model->find("from") : nullptr;
  if (from == nullptr || from->is_null()) {
    return std::nullopt;
  }
  fs::path folder = paths.find(*from, from->as_string());
  folder = folder.has_filename() ? folder : folder.parent_path(); // without a slash at the end
  std::error_code ignored;
  if (!fs::exists(folder / "config.json", ignored)) {
    from->fail(concat("there is no ", (folder / "config.json").string(), ", which a Hugging Face folder has"),
               "Name the folder that holds config.json, the weights and tokenizer.json.");
  }
  HuggingFaceModel out = read_huggingface_model(folder);
  const std::string type = out.family == models::TransformerShape::Family::llama ? "llama" : "gpt";
  if (const JsonNode* said = model->find("type"); said != nullptr && said->as_string() != type) {
    said->fail(
        concat('"', said->as_string(), "\" is not what ", (folder / "config.json").string(), " describes, a ", type),
        "Leave \"type\" out.");
  }
  root.set("model.type", type);
  JsonNode* data = root.at("data");
  const fs::path tokenizer = folder / "tokenizer.json";
  if (data != nullptr && data->is_object() && data->find("tokenizer") == nullptr && fs::exists(tokenizer, ignored) &&
      data->find("type") != nullptr &&
      (has_text(*data->find("type"), "text") || has_text(*data->find("type"), "tokens"))) {
    root.set("data.tokenizer", tokenizer.string());
  }
  return out;
}

ModelConfig read_model(const JsonNode& root, const Paths& paths, const std::optional<HuggingFaceModel>& from) {
  ModelConfig out;
  const std::string type = type_of(root, "model");
  const Values values = Values(&root, "").section("model", type);
  if (type == "cnn") {
    out.kind = ModelConfig::Kind::cnn;
    models::CnnOptions& cnn = out.cnn;
    cnn.channels = values.get("channels", cnn.channels);
    cnn.side = values.get("side", cnn.side);
    cnn.classes = values.get("classes", cnn.classes);
    cnn.width = values.get("width", cnn.width);
    cnn.dropout = values.get("dropout", cnn.dropout);
    cnn.init_from = paths.one(values, "init_from");
    return out;
  }
  out.kind = type == "llama" ? ModelConfig::Kind::llama : ModelConfig::Kind::gpt;
  out.set_vocab_size(0);
  if (from) {
    out.gpt = from->gpt;
    out.llama = from->llama;
  }
  if (out.kind == ModelConfig::Kind::llama) {
    read_llama(values, out.llama);
  } else {
    read_gpt(values, out.gpt);
  }
  if (values.find("init_from") != nullptr || !from) {
    out.init_from() = paths.one(values, "init_from");
  }
  return out;
}

data::DataOptions read_data(const JsonNode& root, const ModelConfig& model, const Paths& paths) {
  data::DataOptions out;
  const std::string type = type_of(root, "data");
  const Values values = Values(&root, "").section("data", type);
  out.train = paths.all(values, "train");
  out.validation = paths.all(values, "validation");
  out.shuffle = values.get("shuffle", out.shuffle);
  out.prefetch = values.get("prefetch", out.prefetch);
  if (type == "images") {
    out.kind = data::DataOptions::Kind::images;
    out.train_labels = paths.all(values, "train_labels");
    out.validation_labels = paths.all(values, "validation_labels");
    out.mean = values.get("mean", out.mean);
    out.std = values.get("std", out.std);
    out.classes = model.cnn.classes;
    return out;
  }
  out.kind = type == "text" ? data::DataOptions::Kind::text : data::DataOptions::Kind::tokens;
  if (type == "text") {
    out.validation_fraction = values.get("validation_fraction", out.validation_fraction);
  } else {
    out.token_bytes = values.get("token_bytes", out.token_bytes);
  }
  out.tokenizer = values.get<std::string>("tokenizer", type == "text" ? kBytes : "");
  if (!out.tokenizer.empty() && out.tokenizer != kBytes) {
    out.tokenizer = paths.one(values, "tokenizer").string();
  }
  out.sequence_length = values.get("sequence_length", model.shape().sequence_length);
  return out;
}

SyncConfig read_sync(const Values& values) {
  SyncConfig out;
  if (!values.present()) {
    return out;
  }
  using Mode = parallel::ServerOptions::Mode;
  out.kind = values.get("kind", out.kind);
  const auto only_for = [&](const char* kind, std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (const JsonNode* found = values.find(key);
          found != nullptr && found->kind() != JsonNode::Kind::null && out.kind != kind) {
        found->fail(concat("needs kind \"", kind, "\", but the kind is \"", out.kind, '"'),
                    "Leave it out, or choose that kind.");
      }
    }
  };
  only_for("local_sgd", {"every", "outer", "elastic"});
  only_for("server", {"servers", "mode", "staleness", "timeout_s", "snapshot_every", "sparse_rows", "transport"});
  out.every = values.maybe<int64_t>("every");
  out.outer = values.maybe<std::string>("outer");
  out.elastic = values.maybe<bool>("elastic");
  if (out.kind == "server") {
    parallel::ServerOptions& server = out.server;
    server.servers = values.maybe<int64_t>("servers").value_or(1);
    const std::string mode = values.maybe<std::string>("mode").value_or("sync");
    server.mode = mode == "async"    ? Mode::async
                  : mode == "stale"  ? Mode::stale
                  : mode == "hybrid" ? Mode::hybrid
                                     : Mode::sync;
    server.staleness = values.maybe<int64_t>("staleness").value_or(server.staleness);
    server.timeout_s = values.maybe<double>("timeout_s").value_or(server.timeout_s);
    server.snapshot_every = values.maybe<int64_t>("snapshot_every").value_or(server.snapshot_every);
    server.sparse_rows = values.patterns("sparse_rows");
    out.transport = values.maybe<std::string>("transport").value_or(out.transport);
    const auto only_in = [&](const char* key, Mode wanted) {
      if (const JsonNode* found = values.find(key);
          found != nullptr && found->kind() != JsonNode::Kind::null && server.mode != wanted) {
        found->fail(concat("needs mode \"", parallel::ServerOptions::name(wanted), "\", but the mode is \"", mode, '"'),
                    "Leave it out, or choose that mode.");
      }
    };
    only_in("staleness", Mode::stale);
    only_in("timeout_s", Mode::hybrid);
  }
  return out;
}

// Writes the options of parallel.sync into the engine's.
void resolve_sync(const JsonNode& engine, RunConfig& out) {
  const SyncConfig& sync = out.parallel.sync;
  if (sync.kind == "all_reduce") {
    return;
  }
  if (sync.kind == "server") {
    out.engine.server = sync.server;
    return;
  }
  if (const JsonNode* averaging = engine.find("parameter_averaging");
      averaging != nullptr && averaging->kind() != JsonNode::Kind::null) {
    averaging->fail("parallel.sync says how replicas average already", "Leave one of them out.");
  }
  parallel::AveragingOptions& averaging = out.engine.averaging;
  averaging.every = sync.every.value_or(SyncConfig::kEvery);
  averaging.elastic = sync.elastic.value_or(false);
  if (sync.outer.value_or("average") == "nesterov") {
    averaging.outer = parallel::AveragingOptions::Outer::nesterov;
    averaging.outer_lr = parallel::AveragingOptions::kNesterovLr;
    averaging.outer_momentum = parallel::AveragingOptions::kNesterovMomentum;
  }
}

ParallelConfig read_parallel(const Values& values) {
  ParallelConfig out;
  out.pipe = values.get("pipe", out.pipe);
  out.tensor = values.get("tensor", out.tensor);
  out.context = values.get("context", out.context);
  out.sequence_parallel = values.get("sequence_parallel", out.sequence_parallel);
  out.context_kind =
      values.get<std::string>("context_kind", "ring") == "ulysses" ? context::Kind::ulysses : context::Kind::ring;
  const JsonNode* data = values.find("data");
  if (data != nullptr && data->kind() != JsonNode::Kind::string) {
    out.data = data->as_integer();
  }
  out.schedule = values.get("schedule", out.schedule);
  out.chunks = values.maybe<int64_t>("chunks");
  out.sync = read_sync(values.section("sync"));
  return out;
}

TrainingConfig read_training(const Values& values) {
  TrainingConfig out;
  out.steps = values.get("steps", out.steps);
  out.seed = values.get("seed", out.seed);
  out.device = values.get("device", out.device);
  out.eval_every = values.get("eval_every", out.eval_every);
  out.eval_batches = values.get("eval_batches", out.eval_batches);
  out.checkpoint_every = values.get("checkpoint_every", out.checkpoint_every);
  out.keep_checkpoints = values.get("keep_checkpoints", out.keep_checkpoints);
  if (const JsonNode* folder = values.find("export")) { // relative to the working directory, as --out
    if (folder->as_string().empty()) {
      folder->fail("the path is empty");
    }
    out.export_to = fs::absolute(folder->as_string()).lexically_normal();
  }
  if (const Values sample = values.section("sample"); sample.present()) {
    out.sample.emplace();
    out.sample->prompt = sample.get("prompt", out.sample->prompt);
    out.sample->tokens = sample.get("tokens", out.sample->tokens);
    out.sample->temperature = sample.get("temperature", out.sample->temperature);
    out.sample->top_k = sample.get("top_k", out.sample->top_k);
  }
  return out;
}

// Splits "path=value".
std::pair<std::string, std::string> split_override(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError("config", concat("--set ", text, ": this is not path=value"),
                     "Write for example --set training.steps=100.");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// Applies the overrides and takes the engine's file into `root`, if it has one.
// Overrides of keys inside that file are applied after it was read.
JsonNode apply_overrides(JsonNode& root, const Paths& paths, const std::vector<std::string>& overrides) {
  constexpr std::string_view prefix = "engine.";
  std::vector<std::pair<std::string, std::string>> waiting;
  const auto engine_is_file = [&] {
    const JsonNode* engine = root.is_object() ? root.find("engine") : nullptr;
    return engine != nullptr && engine->kind() == JsonNode::Kind::string;
  };
  for (const std::string& text : overrides) {
    const auto [path, value] = split_override(text);
    if (path.starts_with(prefix) && engine_is_file()) {
      waiting.emplace_back(path.substr(prefix.size()), value);
    } else {
      root.set(path, value);
    }
  }
  if (!engine_is_file()) {
    return JsonNode();
  }
  const JsonNode& name = *root.find("engine");
  JsonNode engine = JsonNode::parse_file(paths.find(name, name.as_string()));
  for (const auto& [path, value] : waiting) {
    engine.set(path, value);
  }
  return engine;
}

// The stages may be given in either file; the run file's schedule is used.
void resolve_pipeline(const JsonNode& root, const JsonNode& engine, RunConfig& out) {
  ParallelConfig& parallel = out.parallel;
  pipeline::PipelineOptions& pipeline = out.pipeline;
  pipeline = out.engine.pipeline.over({});
  const bool said = Values(&root, "").section("parallel").find("pipe") != nullptr;
  const JsonNode* stages = Values(&engine, "engine").section("pipeline").find("stages");
  if (said && out.engine.pipeline.stages && pipeline.stages != parallel.pipe) {
    throw InputError(
        "config",
        concat(stages->where(), ": ", stages->path(), " is ", pipeline.stages, " but parallel.pipe is ", parallel.pipe),
        "Leave one of the two out.");
  }
  parallel.pipe = said ? parallel.pipe : pipeline.stages;
  pipeline.stages = static_cast<int>(parallel.pipe);
  pipeline.schedule = pipeline::parse_schedule(parallel.schedule);
  pipeline.chunks =
      static_cast<int>(parallel.chunks.value_or(parallel.schedule == "interleaved" && parallel.pipe > 1 ? 2 : 1));
  if (pipeline.chunks > 1 && pipeline.schedule == pipeline::ScheduleKind::zero_bubble) {
    const JsonNode* chunks = Values(&root, "").section("parallel").find("chunks");
    throw InputError("config",
                     concat(chunks->where(), ": ", chunks->path(),
                            ": \"zero-bubble\" has one part of the model on each stage, not ", pipeline.chunks),
                     "Leave chunks out, or choose \"interleaved\".");
  }
  if (pipeline.chunks > 1 && pipeline.schedule == pipeline::ScheduleKind::one_f_one_b) {
    pipeline.schedule = pipeline::ScheduleKind::interleaved;
  }
}

// The values of "auto" in a run.
AutoValues auto_values(const RunConfig& run) {
  AutoValues out;
  out.steps = run.training.steps;
  if (run.model.is_language()) {
    out.hidden = run.model.shape().hidden;
  }
  return out;
}

RunConfig read(JsonNode root, const fs::path& folder, const std::vector<std::string>& overrides, Files files) {
  RunConfig out;
  const JsonNode separate = apply_overrides(root, Paths(folder, nullptr), overrides);
  const Paths paths(folder, files == Files::must_exist ? nullptr : &out.absent_files);
  const std::optional<HuggingFaceModel> from = read_from(root, paths);
  check_keys(root, "", "", out.notes); // not the engine's, read_deepspeed() does that

  const JsonNode& engine = separate.is_null() ? *root.find("engine") : separate;
  const Values values(&root, "");
  out.model = read_model(root, paths, from);
  out.data = read_data(root, out.model, paths);
  out.parallel = read_parallel(values.section("parallel"));
  out.training = read_training(values.section("training"));
  out.engine = read_deepspeed(engine, auto_values(out));
  out.notes.insert(out.notes.end(), out.engine.notes.begin(), out.engine.notes.end());
  if (from) {
    out.notes.insert(out.notes.end(), from->notes.begin(), from->notes.end());
  }
  resolve_pipeline(root, engine, out);
  resolve_sync(engine, out);
  check_run(root, engine, out);

  const int64_t seed = out.training.seed;
  out.engine.seed = out.data.seed = out.pipeline.base_seed = seed;
  out.model.set_seed(seed);
  out.engine.checkpoint.keep_last = out.training.keep_checkpoints;
  out.data.drop_last = out.engine.dataloader_drop_last;
  out.data.vocab_size = out.model.is_language() ? out.model.shape().vocab_size : 0;
  for (std::string* folder : {&out.engine.offload.optimizer.nvme_path, &out.engine.offload.parameters.nvme_path,
                              &out.engine.activations.nvme_path}) {
    *folder = folder->empty() ? *folder
                              : fs::absolute(*folder)
                                    .lexically_normal()
                                    .string(); // relative to the working directory, once for all ranks
  }
  out.resolved = write_out(out);
  return out;
}

} // namespace

const char* ModelConfig::type() const {
  return kind == Kind::gpt ? "gpt" : kind == Kind::llama ? "llama" : "cnn";
}

models::LanguageOptions ModelConfig::language() const {
  return kind == Kind::llama ? models::LanguageOptions(llama) : models::LanguageOptions(gpt);
}

models::TransformerShape ModelConfig::shape() const {
  return models::shape_of(language());
}

void ModelConfig::set_vocab_size(int64_t size) {
  gpt.vocab_size = llama.vocab_size = size;
}

void ModelConfig::set_seed(int64_t seed) {
  gpt.seed = llama.seed = cnn.seed = seed;
}

fs::path& ModelConfig::init_from() {
  return kind == Kind::cnn ? cnn.init_from : kind == Kind::llama ? llama.init_from : gpt.init_from;
}

const fs::path& ModelConfig::init_from() const {
  return const_cast<ModelConfig*>(this)->init_from();
}

RunConfig read_run_file(const fs::path& path, const std::vector<std::string>& overrides, Files files) {
  return read(JsonNode::parse_file(path), fs::absolute(path).parent_path(), overrides, files);
}

RunConfig read_run(JsonNode root, const fs::path& folder, const std::vector<std::string>& overrides) {
  return read(std::move(root), folder, overrides, Files::may_be_absent);
}

} // namespace trireme::config
