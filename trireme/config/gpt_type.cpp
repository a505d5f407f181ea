#include <trireme/base/error.h>
#include <trireme/config/key_check.h>
#include <trireme/config/places.h>
#include <trireme/config/run_types.h>

#include <algorithm>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBytesVocabulary = 256;

void read_gpt(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::gpt;
  run.model.traits = {.layers = true, .tensor = true, .context = true, .writes_text = true};
  const Values values(&section, "model", "gpt");
  models::GptOptions& gpt = run.model.gpt;
  gpt.layers = values.get("layers", gpt.layers);
  gpt.hidden = values.get("hidden", gpt.hidden);
  gpt.heads = values.get("heads", gpt.heads);
  gpt.sequence_length = values.get("sequence_length", gpt.sequence_length);
  gpt.vocab_size = values.get<int64_t>("vocab_size", 0);
  gpt.tie_embeddings = values.get("tie_embeddings", gpt.tie_embeddings);
  gpt.dropout = values.get("dropout", gpt.dropout);
  gpt.init_from = paths.one(section, "init_from");
}

ordered_json write_gpt(const RunConfig& run) {
  const models::GptOptions& gpt = run.model.gpt;
  return {{"type", "gpt"},
          {"layers", gpt.layers},
          {"hidden", gpt.hidden},
          {"heads", gpt.heads},
          {"sequence_length", gpt.sequence_length},
          {"vocab_size", gpt.vocab_size == 0 ? ordered_json(nullptr) : ordered_json(gpt.vocab_size)},
          {"tie_embeddings", gpt.tie_embeddings},
          {"dropout", gpt.dropout},
          {"init_from", path_or_null(gpt.init_from)}};
}

// Larger numbers are typing errors, and results computed from them overflow.
void check_size(const JsonNode& root, const models::GptOptions& gpt) {
  constexpr int64_t kMostLayers = 100'000;
  constexpr double kMostNumbers = 1e15; // in all parameters, or of a sample in one tensor
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const double parameters = 12 * real(gpt.layers) * real(gpt.hidden) * real(gpt.hidden) +
                            (real(gpt.vocab_size) + real(gpt.sequence_length)) * real(gpt.hidden);
  const double sample = real(gpt.sequence_length) * std::max({real(gpt.heads) * real(gpt.sequence_length),
                                                              4 * real(gpt.hidden), real(gpt.vocab_size)});
  if (gpt.layers > kMostLayers) {
    place(root, "model", "layers").fail(concat(gpt.layers, " layers are more than ", kMostLayers));
  }
  if (parameters > kMostNumbers) {
    root.find("model")->fail(concat("it would have ", parameters, " parameters, more than ", kMostNumbers),
                             "Check hidden, layers and vocab_size.");
  }
  if (sample > kMostNumbers) {
    place(root, "model", "sequence_length")
        .fail(concat("a sample of ", gpt.sequence_length, " tokens makes tensors of ", sample, " numbers, more than ",
                     kMostNumbers));
  }
}

void check_gpt(const JsonNode& root, RunConfig& run) {
  if (run.data.token_bytes == 3) {
    place(root, "data", "token_bytes").fail("tokens have 2 or 4 bytes", "Set one of these, or leave it out.");
  }
  models::GptOptions& gpt = run.model.gpt;
  check_size(root, gpt);
  if (gpt.hidden % gpt.heads != 0) {
    const JsonNode& heads = place(root, "model", "heads");
    heads.fail(concat("heads must divide hidden, found ", gpt.heads, " heads and hidden ", gpt.hidden, ", ",
                      named(place(root, "model", "hidden"))));
  }
  if (run.data.sequence_length != gpt.sequence_length) {
    place(root, "data", "sequence_length")
        .fail(concat(run.data.sequence_length, " is not the model's ", gpt.sequence_length, ", ",
                     named(place(root, "model", "sequence_length"))),
              "Leave out the one in \"data\".");
  }
  const JsonNode& tokenizer = place(root, "data", "tokenizer");
  if (run.data.tokenizer == "bytes") {
    if (gpt.vocab_size == 0) {
      gpt.vocab_size = kBytesVocabulary;
    }
    if (gpt.vocab_size < kBytesVocabulary) {
      place(root, "model", "vocab_size")
          .fail(concat(gpt.vocab_size, " tokens are too few for the tokenizer \"bytes\", which has 256, ",
                       named(tokenizer)),
                "Leave it out.");
    }
  } else if (run.data.tokenizer.empty() && gpt.vocab_size == 0) {
    root.find("model")->fail(
        concat("\"vocab_size\" is missing, and there is no tokenizer to ask, ", named(place(root, "data", "type"))),
        "Write it, or \"tokenizer\" in \"data\".");
  }
}

// For a gpt: its sizes must be multiples of the numbers of ranks.
void check_split(const JsonNode& root, RunConfig& run) {
  const models::GptOptions& gpt = run.model.gpt;
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
  divides("tensor", parallel.tensor, tensor_ranks, "heads", gpt.heads);
  if (parallel.tensor > 1 && gpt.vocab_size > 0 && gpt.vocab_size < parallel.tensor) {
    place(root, "parallel", "tensor")
        .fail(concat(parallel.tensor, " ranks cannot share a vocabulary of ", gpt.vocab_size),
              "Choose fewer tensor ranks.");
  }
  if (parallel.context > 1 && ring) { // zig-zag: a chunk from the front and one from the end
    divides("context", 2 * parallel.context,
            concat("the ", 2 * parallel.context, " chunks of ", context_ranks, ", two each in a ring,"),
            "sequence_length", gpt.sequence_length);
  } else if (parallel.context > 1) {
    divides("context", parallel.context, context_ranks, "sequence_length", gpt.sequence_length);
    divides("context", parallel.context * parallel.tensor, of_both, "heads", gpt.heads);
  }
  if (parallel.sequence_parallel && parallel.tensor > 1) {
    divides("sequence_parallel", parallel.tensor * parallel.context, of_both, "sequence_length", gpt.sequence_length);
  } else if (parallel.sequence_parallel) {
    const JsonNode& key = place(root, "parallel", "sequence_parallel");
    run.notes.push_back(
        concat(key.where(), ": ", key.path(), " has no effect: there is one tensor rank (parallel.tensor)"));
  }
}

void check_gpt_run(const JsonNode& root, RunConfig& run) {
  check_gpt(root, run);
  check_split(root, run);
}

} // namespace

RunType gpt_type() {
  return {"gpt", read_gpt, write_gpt, check_gpt_run};
}

} // namespace trireme::config
