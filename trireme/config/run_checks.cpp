#include <trireme/config/run_checks.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/compatibility.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/key_check.h>
#include <trireme/device/options.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBytesVocabulary = 256;

// The value of section.key, or the section where the key is absent: both have a place.
const JsonNode& place(const JsonNode& root, const char* section, const char* key) {
  const JsonNode* found = root.find(section);
  if (found == nullptr) {
    return root;
  }
  const JsonNode* value = found->find(key);
  return value == nullptr ? *found : *value;
}

std::string named(const JsonNode& node) {
  return concat(node.path(), " at ", node.where());
}

// Larger numbers are typing errors, and results computed from them overflow.
void check_size(const JsonNode& root, const models::TransformerShape& model) {
  constexpr int64_t kMostLayers = 100'000;
  constexpr double kMostNumbers = 1e15; // in all parameters, or of a sample in one tensor
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const double matrices =
      real(model.hidden) * (4 * real(model.heads) * real(model.width_of_head()) + 3 * real(model.width_of_mlp()));
  const double parameters =
      real(model.layers) * matrices + (real(model.vocab_size) + real(model.sequence_length)) * real(model.hidden);
  const double sample = real(model.sequence_length) *
                        std::max({real(model.heads) * real(model.sequence_length), real(model.width_of_mlp()),
                                  real(model.heads) * real(model.width_of_head()), real(model.vocab_size)});
  if (model.layers > kMostLayers) {
    place(root, "model", "layers").fail(concat(model.layers, " layers are more than ", kMostLayers));
  }
  if (parameters > kMostNumbers) {
    root.find("model")->fail(concat("it would have ", parameters, " parameters, more than ", kMostNumbers),
                             "Check hidden, layers and vocab_size.");
  }
  if (sample > kMostNumbers) {
    place(root, "model", "sequence_length")
        .fail(concat("a sample of ", model.sequence_length, " tokens makes tensors of ", sample, " numbers, more than ",
                     kMostNumbers));
  }
}

// heads, kv_heads and head_dim of a llama; of a gpt heads.
void check_heads(const JsonNode& root, const models::TransformerShape& model, const models::LlamaOptions& llama) {
  const JsonNode& heads = place(root, "model", "heads");
  if (model.head_dim == 0 && model.hidden % model.heads != 0) {
    heads.fail(concat("heads must divide hidden, found ", model.heads, " heads and hidden ", model.hidden, ", ",
                      named(place(root, "model", "hidden"))));
  }
  if (!model.is_gated()) {
    return;
  }
  if (model.heads % llama.kv_heads_or_all() != 0) {
    place(root, "model", "kv_heads")
        .fail(concat("kv_heads must divide heads, found ", llama.kv_heads, " and ", model.heads, ", ", named(heads)));
  }
  if (model.width_of_head() % 2 != 0) {
    place(root, "model", "head_dim")
        .fail(concat("rotary positions need an even width of a head, found ", model.width_of_head()));
  }
}

void check_language(const JsonNode& root, RunConfig& run) {
  if (run.data.token_bytes == 3) {
    place(root, "data", "token_bytes").fail("tokens have 2 or 4 bytes", "Set one of these, or leave it out.");
  }
  const models::TransformerShape model = run.model.shape();
  check_size(root, model);
  check_heads(root, model, run.model.llama);
  if (run.data.sequence_length != model.sequence_length) {
    place(root, "data", "sequence_length")
        .fail(concat(run.data.sequence_length, " is not the model's ", model.sequence_length, ", ",
                     named(place(root, "model", "sequence_length"))),
              "Leave out the one in \"data\".");
  }
  const JsonNode& tokenizer = place(root, "data", "tokenizer");
  if (run.data.tokenizer == "bytes") {
    if (model.vocab_size == 0) {
      run.model.set_vocab_size(kBytesVocabulary);
    } else if (model.vocab_size < kBytesVocabulary) {
      place(root, "model", "vocab_size")
          .fail(concat(model.vocab_size, " tokens are too few for the tokenizer \"bytes\", which has 256, ",
                       named(tokenizer)),
                "Leave it out.");
    }
  } else if (run.data.tokenizer.empty() && model.vocab_size == 0) {
    root.find("model")->fail(
        concat("\"vocab_size\" is missing, and there is no tokenizer to ask, ", named(place(root, "data", "type"))),
        "Write it, or \"tokenizer\" in \"data\".");
  }
}

// For a language model: its sizes must be multiples of the numbers of ranks.
void check_split(const JsonNode& root, RunConfig& run) {
  const models::TransformerShape model = run.model.shape();
  const ParallelConfig& parallel = run.parallel;
  const bool ring = parallel.context_kind == context::Kind::ring;
  // `parts`: the ranks or chunks that share the model's size.
  const auto divides = [&](const char* axis, int64_t divisor, const std::string& parts, const char* what,
                           int64_t size) {
    if (size % divisor != 0) {
      place(root, "parallel", axis)
          .fail(concat(parts, " cannot share ", size, " evenly, ", named(place(root, "model", what))),
                concat("Choose another number of ranks, or a model.", what, " that ", divisor, " divides."));
    }
  };
  const std::string context_ranks = concat(parallel.context, " context ranks");
  const std::string tensor_ranks = concat(parallel.tensor, " tensor ranks");
  const std::string of_both = parallel.tensor == 1    ? context_ranks
                              : parallel.context == 1 ? tensor_ranks
                                                      : concat(parallel.context, " context x ", tensor_ranks);
  divides("tensor", parallel.tensor, tensor_ranks, "heads", model.heads);
  if (parallel.tensor > 1 && model.vocab_size > 0 && model.vocab_size < parallel.tensor) {
    place(root, "parallel", "tensor")
        .fail(concat(parallel.tensor, " ranks cannot share a vocabulary of ", model.vocab_size),
              "Choose fewer tensor ranks.");
  }
  if (parallel.context > 1 && ring) { // zig-zag: a chunk from the front and one from the end
    divides("context", 2 * parallel.context,
            concat("the ", 2 * parallel.context, " chunks of ", context_ranks, ", two each in a ring,"),
            "sequence_length", model.sequence_length);
  } else if (parallel.context > 1) {
    divides("context", parallel.context, context_ranks, "sequence_length", model.sequence_length);
    divides("context", parallel.context * parallel.tensor, of_both, "heads", model.heads);
  }
  if (parallel.sequence_parallel && parallel.tensor > 1) {
    divides("sequence_parallel", parallel.tensor * parallel.context, of_both, "sequence_length", model.sequence_length);
  } else if (parallel.sequence_parallel) {
    const JsonNode& key = place(root, "parallel", "sequence_parallel");
    run.notes.push_back(
        concat(key.where(), ": ", key.path(), " has no effect: there is one tensor rank (parallel.tensor)"));
  }
}

// The last step is saved, and only what the replicas agree on can be.
void check_averaging(const JsonNode& root, const JsonNode& engine, const RunConfig& run) {
  const int64_t every = run.engine.averaging.every;
  if (every == 0 || run.training.steps <= run.engine.averaging.start_step) {
    return;
  }
  const bool in_short = run.parallel.sync.kind == "local_sgd";
  const JsonNode& section = in_short ? *root.find("parallel")->find("sync") : *engine.find("parameter_averaging");
  const JsonNode& key = section.find("every") != nullptr ? *section.find("every") : *section.find("kind");
  const auto meets = [&](const char* name, int64_t steps) {
    if (steps % every != 0) {
      place(root, "training", name)
          .fail(concat(steps, " is not a multiple of ", every, ", ", named(key),
                       ": between averaging steps replicas differ and cannot be saved or evaluated"),
                concat("Write ", steps > every ? concat(steps / every * every, " or ") : "",
                       (steps / every + 1) * every, '.'));
    }
  };
  meets("steps", run.training.steps);
  meets("checkpoint_every", run.training.checkpoint_every);
  if (run.engine.averaging.elastic) { // between averaging steps replicas do not communicate
    meets("eval_every", run.training.eval_every);
  }
}

// The same for ranks that step alone with 0/1 Adam.
void check_meetings(const JsonNode& root, const JsonNode& engine, const RunConfig& run) {
  const auto* const adam =
      run.engine.optimizer ? std::get_if<optim::ZeroOneAdamOptions>(&run.engine.optimizer->rule) : nullptr;
  if (adam == nullptr) {
    return;
  }
  const JsonNode& key = *engine.find("optimizer");
  const auto meets = [&](const char* name, int64_t step) {
    if (adam->meet_in(step)) {
      return;
    }
    int64_t next = step;
    while (!adam->meet_in(next)) {
      ++next;
    }
    place(root, "training", name)
        .fail(concat("step ", step, " is between averaging steps, ", named(key),
                     ": ranks differ there and cannot be saved"),
              concat("The next averaging step is ", next, "; every ", adam->local_interval(step),
                     " steps there. With \"local_step_clipper\": 1 every step averages."));
  };
  meets("steps", run.training.steps);
  for (int64_t step = run.training.checkpoint_every; run.training.checkpoint_every > 0 && step < run.training.steps;
       step += run.training.checkpoint_every) {
    meets("checkpoint_every", step);
  }
}

void check_cnn(const JsonNode& root, const RunConfig& run) {
  const auto count = [&](const char* images, size_t n_images, const char* labels, size_t n_labels) {
    if (n_images != n_labels) {
      place(root, "data", labels)
          .fail(concat(n_labels, " files of labels for ", n_images, " of images, ", named(place(root, "data", images))),
                "Write one for each, in the same order.");
    }
  };
  count("train", run.data.train.size(), "train_labels", run.data.train_labels.size());
  count("validation", run.data.validation.size(), "validation_labels", run.data.validation_labels.size());
  if (run.model.cnn.side % 4 != 0) {
    place(root, "model", "side")
        .fail(concat("must be a multiple of 4, because images are halved twice; found ", run.model.cnn.side));
  }
}

void check_training(const JsonNode& root, const JsonNode& engine, RunConfig& run) {
  if (!device::is_choice(run.training.device)) {
    place(root, "training", "device")
        .fail(concat('"', run.training.device, "\" is not a training device"), device::kChoices);
  }
  const int64_t end = run.engine.schedule.total_num_steps;
  if (end > 0 && end < run.training.steps) {
    const JsonNode& scheduler = *engine.find("scheduler");
    run.notes.push_back(concat(scheduler.where(), ": ", scheduler.path(), ": the schedule ends at step ", end,
                               ", but the run has ", run.training.steps, " (", named(place(root, "training", "steps")),
                               "): the rate stays at its end from there."));
  }
  // Throws if no batch size is given; whether it fits is known only with the number of ranks.
  if (run.parallel.data || (!run.engine.batch.train && !run.engine.batch.micro)) {
    run.engine.batch_for(run.parallel.data.value_or(1));
  }
}

ordered_json path_or_null(const std::filesystem::path& path) {
  return path.empty() ? ordered_json(nullptr) : ordered_json(path.string());
}

ordered_json paths(const std::vector<std::filesystem::path>& all) {
  ordered_json out = ordered_json::array();
  for (const auto& path : all) {
    out.push_back(path.string());
  }
  return out;
}

ordered_json write_model(const ModelConfig& model) {
  if (model.kind == ModelConfig::Kind::cnn) {
    const models::CnnOptions& cnn = model.cnn;
    return {{"type", "cnn"},
            {"channels", cnn.channels},
            {"side", cnn.side},
            {"classes", cnn.classes},
            {"width", cnn.width},
            {"dropout", cnn.dropout},
            {"init_from", path_or_null(cnn.init_from)}};
  }
  const auto or_null = [](int64_t value) { return value == 0 ? ordered_json(nullptr) : ordered_json(value); };
  if (model.kind == ModelConfig::Kind::llama) {
    const models::LlamaOptions& llama = model.llama;
    return {{"type", "llama"},
            {"layers", llama.layers},
            {"hidden", llama.hidden},
            {"heads", llama.heads},
            {"kv_heads", or_null(llama.kv_heads)},
            {"head_dim", or_null(llama.head_dim)},
            {"intermediate", or_null(llama.intermediate)},
            {"sequence_length", llama.sequence_length},
            {"vocab_size", or_null(llama.vocab_size)},
            {"rope_theta", llama.rope_theta},
            {"rope_scaling", write_rope_scaling(llama.rope_scaling)},
            {"max_positions", or_null(llama.max_positions)},
            {"rms_norm_eps", llama.rms_norm_eps},
            {"attention_bias", llama.attention_bias},
            {"attention_output_bias", llama.attention_output_bias},
            {"mlp_bias", llama.mlp_bias},
            {"qk_norm", llama.qk_norm},
            {"window", llama.window},
            {"first_window_layer", llama.first_window_layer},
            {"tie_embeddings", llama.tie_embeddings},
            {"init_from", path_or_null(llama.init_from)}};
  }
  const models::GptOptions& gpt = model.gpt;
  return {{"type", "gpt"},
          {"layers", gpt.layers},
          {"hidden", gpt.hidden},
          {"heads", gpt.heads},
          {"sequence_length", gpt.sequence_length},
          {"vocab_size", or_null(gpt.vocab_size)},
          {"tie_embeddings", gpt.tie_embeddings},
          {"dropout", gpt.dropout},
          {"init_from", path_or_null(gpt.init_from)}};
}

ordered_json write_data(const data::DataOptions& data) {
  using Kind = data::DataOptions::Kind;
  const char* type = data.kind == Kind::images ? "images" : data.kind == Kind::text ? "text" : "tokens";
  ordered_json out = {{"type", type}, {"train", paths(data.train)}, {"validation", paths(data.validation)}};
  if (data.kind == Kind::images) {
    out.update({{"train_labels", paths(data.train_labels)},
                {"validation_labels", paths(data.validation_labels)},
                {"mean", data.mean},
                {"std", data.std}});
  } else {
    if (data.kind == Kind::text) {
      out["validation_fraction"] = data.validation_fraction;
    } else {
      out["token_bytes"] = data.token_bytes == 0 ? ordered_json(nullptr) : ordered_json(data.token_bytes);
    }
    out["tokenizer"] = path_or_null(data.tokenizer);
    out["sequence_length"] = data.sequence_length;
  }
  out["shuffle"] = data.shuffle;
  out["prefetch"] = data.prefetch;
  return out;
}

ordered_json write_training(const TrainingConfig& training) {
  ordered_json out = {{"steps", training.steps},
                      {"seed", training.seed},
                      {"device", training.device},
                      {"eval_every", training.eval_every},
                      {"eval_batches", training.eval_batches},
                      {"checkpoint_every", training.checkpoint_every},
                      {"keep_checkpoints", training.keep_checkpoints},
                      {"export", path_or_null(training.export_to)}};
  if (const auto& sample = training.sample) {
    out["sample"] = {{"prompt", sample->prompt},
                     {"tokens", sample->tokens},
                     {"temperature", sample->temperature},
                     {"top_k", sample->top_k}};
  }
  return out;
}

} // namespace

void check_run(const JsonNode& root, const JsonNode& engine, RunConfig& run) {
  check_compatibility(root, engine, setting_of(run));
  if (run.model.is_language()) {
    check_language(root, run);
    check_split(root, run);
  } else {
    check_cnn(root, run);
  }
  check_training(root, engine, run);
  check_averaging(root, engine, run);
  check_meetings(root, engine, run);
}

ordered_json write_sync(const SyncConfig& sync) {
  ordered_json out = {{"kind", sync.kind}};
  if (sync.kind == "local_sgd") {
    out["every"] = sync.every.value_or(SyncConfig::kEvery);
    out["outer"] = sync.outer.value_or("average");
    out["elastic"] = sync.elastic.value_or(false);
  } else if (sync.kind == "server") {
    using Mode = parallel::ServerOptions::Mode;
    const parallel::ServerOptions& server = sync.server;
    out.update({{"servers", server.servers},
                {"mode", parallel::ServerOptions::name(server.mode)},
                {"transport", sync.transport},
                {"snapshot_every", server.snapshot_every}});
    if (!server.sparse_rows.empty()) {
      out["sparse_rows"] = server.sparse_rows;
    }
    if (server.mode == Mode::stale) {
      out["staleness"] = server.staleness;
    } else if (server.mode == Mode::hybrid) {
      out["timeout_s"] = server.timeout_s;
    }
  }
  return out;
}

ordered_json write_out(const RunConfig& run) {
  const ParallelConfig& parallel = run.parallel;
  return {{"model", write_model(run.model)},
          {"data", write_data(run.data)},
          {"parallel",
           {{"pipe", parallel.pipe},
            {"tensor", parallel.tensor},
            {"context", parallel.context},
            {"sequence_parallel", parallel.sequence_parallel},
            {"context_kind", parallel.context_kind == context::Kind::ulysses ? "ulysses" : "ring"},
            {"data", parallel.data ? ordered_json(*parallel.data) : ordered_json("auto")},
            {"sync", write_sync(parallel.sync)},
            {"schedule", parallel.schedule},
            {"chunks", parallel.chunks ? ordered_json(*parallel.chunks) : ordered_json()}}},
          {"training", write_training(run.training)},
          {"engine", run.engine.source}};
}

} // namespace trireme::config
