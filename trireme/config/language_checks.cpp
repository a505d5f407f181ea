#include <trireme/config/language_checks.h>

#include <trireme/base/error.h>
#include <trireme/config/places.h>

#include <algorithm>

namespace trireme::config {
namespace {

// The mask token of a bert comes after the bytes.
int64_t bytes_vocabulary(const RunConfig& run) {
  return run.data.mask_fraction > 0 && run.data.mask_token < 0 ? 257 : 256;
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

void check_sizes(const JsonNode& root, RunConfig& run) {
  if (run.data.token_bytes == 3) {
    place(root, "data", "token_bytes").fail("tokens have 2 or 4 bytes", "Set one of these, or leave it out.");
  }
  const models::TransformerShape model = run.model.shape();
  check_size(root, model);
  check_heads(root, model, run.model.llama);
  const bool may_be_shorter = run.model.kind == ModelConfig::Kind::bert;
  if (run.data.sequence_length > model.sequence_length ||
      (run.data.sequence_length < model.sequence_length && !may_be_shorter)) {
    place(root, "data", "sequence_length")
        .fail(concat(run.data.sequence_length, may_be_shorter ? " exceeds the model's " : " is not the model's ",
                     model.sequence_length, ", ", named(place(root, "model", "sequence_length"))),
              "Leave out the one in \"data\".");
  }
  const JsonNode& tokenizer = place(root, "data", "tokenizer");
  if (run.data.tokenizer == "bytes") {
    const int64_t needed = bytes_vocabulary(run);
    if (model.vocab_size == 0) {
      run.model.set_vocab_size(needed);
    } else if (model.vocab_size < needed) {
      place(root, "model", "vocab_size")
          .fail(concat(model.vocab_size, " tokens are too few for the tokenizer \"bytes\", which has 256",
                       needed > 256 ? " and a mask token, " : ", ", named(tokenizer)),
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
  models::TransformerShape model = run.model.shape();
  model.sequence_length = run.data.sequence_length; // a bert's may be shorter
  const ParallelConfig& parallel = run.parallel;
  const bool ring = parallel.context_kind == context::Kind::ring;
  // `parts`: the ranks or chunks that share the model's size.
  const auto divides = [&](const char* axis, int64_t divisor, const std::string& parts, const char* what,
                           int64_t size) {
    if (size % divisor != 0) {
      place(root, "parallel", axis)
          .fail(concat(parts, " cannot share ", size, std::string_view(what) == "heads" ? " heads" : " tokens",
                       " evenly, ", named(place(root, "model", what))),
                concat("Choose a number of ranks that divides ", size, ", or a model.", what, " that ", divisor,
                       " divides."));
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

} // namespace

void check_language(const JsonNode& root, RunConfig& run) {
  check_sizes(root, run);
  check_split(root, run);
}

} // namespace trireme::config
