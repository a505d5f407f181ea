#include <trireme/config/run_file.h>

#include <trireme/base/text.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/config/huggingface_folder.h>
#include <trireme/config/key_check.h>
#include <trireme/config/run_checks.h>
#include <trireme/config/run_types.h>

#include <algorithm>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;

std::string type_of(const JsonNode& root, const char* section) {
  return root.find(section)->find("type")->as_string();
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

CudaGraph read_cuda_graph(const JsonNode* node) {
  if (node == nullptr || node->kind() == JsonNode::Kind::string) {
    return CudaGraph::automatic;
  }
  return node->as_bool() ? CudaGraph::on : CudaGraph::off;
}

TrainingConfig read_training(const Values& values) {
  TrainingConfig out;
  out.steps = values.get("steps", out.steps);
  out.seed = values.get("seed", out.seed);
  out.device = values.get("device", out.device);
  out.tf32 = values.get("tf32", out.tf32);
  out.cuda_graph = read_cuda_graph(values.find("cuda_graph"));
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
  out.freeze.expressions = values.expressions("freeze");
  out.lora = read_lora(values.section("lora"));
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
JsonNode apply_overrides(JsonNode& root, const RunPaths& paths, const std::vector<std::string>& overrides) {
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
  JsonNode engine = JsonNode::parse_file(paths.one(name));
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
  if (run.model.reads_tokens()) {
    out.hidden = run.model.shape().hidden;
  }
  return out;
}

// The types that the key table does not know, by section.
ProgramTypes of_program(const RunTypes& types) {
  ProgramTypes out;
  for (const auto& [section, all] : {std::pair("model", &types.models), std::pair("data", &types.data)}) {
    for (const RunType& type : *all) {
      if (type.of_program) {
        out[section].push_back(type.name);
      }
    }
  }
  return out;
}

RunConfig read(JsonNode root, const fs::path& folder, const std::vector<std::string>& overrides, Files files,
               const RunTypes& types) {
  RunConfig out;
  const JsonNode separate = apply_overrides(root, RunPaths(folder, nullptr), overrides);
  const RunPaths paths(folder, files == Files::must_exist ? nullptr : &out.absent_files);
  apply_model_from(root, paths);
  check_keys(root, "", "", out.notes, of_program(types)); // not the engine's, read_deepspeed() does that

  const JsonNode& engine = separate.is_null() ? *root.find("engine") : separate;
  const Values values(&root, "");
  const RunType& model = types.model(type_of(root, "model"));
  const RunType& data = types.data_set(type_of(root, "data"));
  out.model.type = model.name;
  model.read(*root.find("model"), paths, out);
  data.read(*root.find("data"), paths, out);
  out.parallel = read_parallel(values.section("parallel"));
  out.training = read_training(values.section("training"));
  out.engine = read_deepspeed(engine, auto_values(out));
  out.notes.insert(out.notes.end(), out.engine.notes.begin(), out.engine.notes.end());
  resolve_pipeline(root, engine, out);
  resolve_sync(engine, out);
  check_run(root, engine, model, out);

  const int64_t seed = out.training.seed;
  out.engine.seed = out.data.seed = out.pipeline.base_seed = seed;
  out.model.set_seed(seed);
  out.engine.checkpoint.keep_last = out.training.keep_checkpoints;
  out.data.drop_last = out.engine.dataloader_drop_last;
  out.data.vocab_size = out.model.reads_tokens() ? out.model.shape().vocab_size : 0;
  for (std::string* folder : {&out.engine.offload.optimizer.nvme_path, &out.engine.offload.parameters.nvme_path,
                              &out.engine.activations.nvme_path}) {
    *folder = folder->empty() ? *folder
                              : fs::absolute(*folder)
                                    .lexically_normal()
                                    .string(); // relative to the working directory, once for all ranks
  }
  out.resolved = write_out(out, model, data);
  return out;
}

} // namespace

models::LanguageOptions ModelConfig::language() const {
  return kind == Kind::llama ? models::LanguageOptions(llama) : models::LanguageOptions(gpt);
}

models::TransformerShape ModelConfig::shape() const {
  return kind == Kind::bert ? models::shape_of(bert) : models::shape_of(language());
}

std::vector<models::LayerShape> ModelConfig::layer_shapes() const {
  return kind == Kind::bert ? models::bert_layer_shapes(bert) : models::layer_shapes(shape());
}

void ModelConfig::set_vocab_size(int64_t size) {
  gpt.vocab_size = llama.vocab_size = bert.vocab_size = size;
}

void ModelConfig::set_seed(int64_t seed) {
  gpt.seed = llama.seed = bert.seed = cnn.seed = alexnet.seed = seed;
}

fs::path& ModelConfig::init_from() {
  switch (kind) {
    case Kind::llama:
      return llama.init_from;
    case Kind::bert:
      return bert.init_from;
    case Kind::cnn:
      return cnn.init_from;
    case Kind::alexnet:
      return alexnet.init_from;
    case Kind::gpt:
    case Kind::of_program:
      break;
  }
  return gpt.init_from;
}

models::LoraOptions& ModelConfig::lora() {
  return kind == Kind::llama ? llama.lora : kind == Kind::bert ? bert.lora : gpt.lora;
}

const models::LoraOptions& ModelConfig::lora() const {
  return const_cast<ModelConfig*>(this)->lora();
}

const fs::path& ModelConfig::init_from() const {
  return const_cast<ModelConfig*>(this)->init_from();
}

RunConfig read_run_file(const fs::path& path, const std::vector<std::string>& overrides, Files files,
                        const RunTypes& types) {
  return read(JsonNode::parse_file(path), fs::absolute(path).parent_path(), overrides, files, types);
}

RunConfig read_run(JsonNode root, const fs::path& folder, const std::vector<std::string>& overrides,
                   const RunTypes& types) {
  return read(std::move(root), folder, overrides, Files::may_be_absent, types);
}

} // namespace trireme::config
