#include <trireme/estimate/model.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace trireme::estimate {
namespace {

// Bytes of a number of a LayerNorm's statistics, of the softmax and of a loss.
constexpr int64_t kFloat = 4;

struct Sizes {
  Sizes(const models::GptOptions& options, const Conditions& conditions)
      : element(bytes_of(conditions.type)),
        product(conditions.autocast ? 2 : element),
        rows(conditions.samples * options.sequence_length),
        hidden(rows * options.hidden),
        scores(conditions.samples * options.heads * options.sequence_length * options.sequence_length) {}

  int64_t element; // bytes of the residual stream
  int64_t product; // bytes of what a matrix product takes and makes
  int64_t rows; // tokens of a micro-batch
  int64_t hidden; // elements of the residual stream
  int64_t scores; // of attention
};

void token_embedding(Layer& layer, const models::GptOptions& options, const Sizes& s) {
  layer.type = "Embedding";
  layer.reads_parameters_in_backward = false;
  layer.input = kIndexBytes * s.rows;
  layer.working = s.element * (s.hidden + options.vocab_size * options.hidden);
}

void positions(Layer& layer, const models::GptOptions& options, const Sizes& s) {
  layer.type = "GptPositions";
  layer.kept = options.dropout > 0 ? s.element * s.hidden : 0;
  layer.working = s.element * (2 * s.hidden + options.sequence_length * options.hidden);
}

void block(Layer& layer, const models::GptOptions& options, const Conditions& conditions, const Sizes& s) {
  const int64_t h = options.hidden;
  layer.type = "GptBlock";
  // The input and the sum after attention belong to the residual stream, the other 14 to matrix products.
  layer.kept = (2 * s.element + 14 * s.product) * s.hidden + 4 * kFloat * s.rows;
  if (options.dropout > 0) {
    layer.kept += 3 * s.product * s.scores + 2 * s.product * s.hidden;
  } else {
    layer.kept += kFloat * s.rows * options.heads;
  }
  if (conditions.autocast) { // weights in the products' type
    layer.kept += s.product * 12 * h * h;
  }
  // GELU's gradients of output and input beside the residual's, when GELU's output is gone; and the largest weight's.
  layer.working = s.element * s.hidden + 4 * s.product * s.hidden + s.element * 4 * h * h;
  if (options.dropout > 0) {
    layer.working = std::max(layer.working, s.product * s.scores);
  }
}

void last_norm(Layer& layer, const Sizes& s) {
  layer.type = "LayerNorm";
  layer.is_unit = false;
  layer.kept = s.element * s.hidden + 2 * s.element * s.rows;
  layer.working = 2 * s.element * s.hidden;
}

void head(Layer& layer, const models::GptOptions& options, const Conditions& conditions, const Sizes& s) {
  const int64_t weight = options.vocab_size * options.hidden;
  layer.type = options.tie_embeddings ? "Embedding" : "Linear";
  layer.output = s.product * s.rows * options.vocab_size;
  layer.kept = s.product * s.hidden + (conditions.autocast ? s.product * weight : 0);
  layer.working = s.element * (s.hidden + weight);
}

Layer layer_of(const models::GptPart& part, const models::GptOptions& options, const Conditions& conditions, const Sizes& s) {
  using Kind = models::GptPart::Kind;
  Layer layer{part.name, ""};
  for (const auto& [name, sizes] : part.parameters) {
    layer.parameters.push_back({name, std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>())});
  }
  layer.tie = options.tie_embeddings && (part.kind == Kind::tokens || part.kind == Kind::head) ? "wte" : "";
  layer.is_unit = true;
  layer.input = layer.output = s.element * s.hidden;
  switch (part.kind) {
    case Kind::tokens:
      token_embedding(layer, options, s);
      break;
    case Kind::positions:
      positions(layer, options, s);
      break;
    case Kind::block:
      block(layer, options, conditions, s);
      break;
    case Kind::norm:
      last_norm(layer, s);
      break;
    case Kind::head:
      head(layer, options, conditions, s);
      break;
  }
  return layer;
}

} // namespace

int64_t Model::parameters() const {
  std::set<std::string> seen;
  int64_t sum = 0;
  for (const Layer& layer : layers) {
    for (const Parameter& parameter : layer.parameters) {
      sum += layer.tie.empty() || seen.insert(layer.tie + ' ' + parameter.name).second ? parameter.numel : 0;
    }
  }
  return sum;
}

Model gpt(const models::GptOptions& options, const Conditions& conditions) {
  const Sizes sizes(options, conditions);
  Model model;
  for (const models::GptPart& part : models::gpt_parts(options)) {
    model.layers.push_back(layer_of(part, options, conditions, sizes));
  }
  const int64_t logits = sizes.product * sizes.rows * options.vocab_size;
  model.loss_kept = logits + kFloat * sizes.rows;
  model.loss_working = conditions.layer_list ? logits : 0;
  return model;
}

} // namespace trireme::estimate
