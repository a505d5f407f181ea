#include <trireme/estimate/model.h>

#include <trireme/base/error.h>

#include <set>

namespace trireme::estimate {
namespace {

// Bytes of a number of a LayerNorm's statistics, of the softmax and of a loss.
constexpr int64_t kFloat = 4;

struct Sizes {
  Sizes(const GptShape& shape, const Conditions& conditions)
      : element(bytes_of(conditions.type)),
        product(conditions.autocast ? 2 : element),
        rows(conditions.samples * shape.sequence_length),
        hidden(rows * shape.hidden),
        scores(conditions.samples * shape.heads * shape.sequence_length * shape.sequence_length) {}

  int64_t element; // bytes of the residual stream
  int64_t product; // bytes of what a matrix product takes and makes
  int64_t rows; // tokens of a micro-batch
  int64_t hidden; // elements of the residual stream
  int64_t scores; // of attention
};

Layer token_embedding(const GptShape& shape, const Sizes& s) {
  Layer layer{"transformer.wte", "Embedding", {{"weight", shape.vocab_size * shape.hidden}}};
  layer.is_unit = true;
  layer.tie = shape.tie_embeddings ? "wte" : "";
  layer.reads_parameters_in_backward = false;
  layer.input = kIndexBytes * s.rows;
  layer.output = s.element * s.hidden;
  layer.working = s.element * (s.hidden + shape.vocab_size * shape.hidden);
  return layer;
}

Layer positions(const GptShape& shape, const Sizes& s) {
  Layer layer{"transformer.wpe", "GptPositions", {{"weight", shape.sequence_length * shape.hidden}}};
  layer.is_unit = true;
  layer.input = layer.output = s.element * s.hidden;
  layer.kept = shape.dropout > 0 ? s.element * s.hidden : 0;
  layer.working = s.element * (2 * s.hidden + shape.sequence_length * shape.hidden);
  return layer;
}

Layer block(const GptShape& shape, const Conditions& conditions, const Sizes& s, int64_t number) {
  const int64_t h = shape.hidden;
  Layer layer{concat("transformer.h.", number), "GptBlock",
              {{"ln_1.weight", h}, {"ln_1.bias", h},
               {"attn.c_attn.weight", 3 * h * h}, {"attn.c_attn.bias", 3 * h}, {"attn.c_proj.weight", h * h}, {"attn.c_proj.bias", h},
               {"ln_2.weight", h}, {"ln_2.bias", h},
               {"mlp.c_fc.weight", 4 * h * h}, {"mlp.c_fc.bias", 4 * h}, {"mlp.c_proj.weight", 4 * h * h}, {"mlp.c_proj.bias", h}}};
  layer.is_unit = true;
  layer.input = layer.output = s.element * s.hidden;
  // The input and the sum after attention belong to the residual stream, the other 14 to matrix products.
  layer.kept = (2 * s.element + 14 * s.product) * s.hidden + 4 * kFloat * s.rows;
  if (shape.dropout > 0) {
    layer.kept += 3 * s.product * s.scores + 2 * s.product * s.hidden;
  } else {
    layer.kept += kFloat * s.rows * shape.heads;
  }
  if (conditions.autocast) { // weights in the products' type
    layer.kept += s.product * 12 * h * h;
  }
  // GELU's gradients of output and input beside the residual's, when GELU's output is gone; and the largest weight's.
  layer.working = s.element * s.hidden + 4 * s.product * s.hidden + s.element * 4 * h * h;
  if (shape.dropout > 0) {
    layer.working = std::max(layer.working, s.product * s.scores);
  }
  return layer;
}

Layer last_norm(const GptShape& shape, const Sizes& s) {
  Layer layer{"transformer.ln_f", "LayerNorm", {{"weight", shape.hidden}, {"bias", shape.hidden}}};
  layer.input = layer.output = s.element * s.hidden;
  layer.kept = s.element * s.hidden + 2 * s.element * s.rows;
  layer.working = 2 * s.element * s.hidden;
  return layer;
}

Layer head(const GptShape& shape, const Conditions& conditions, const Sizes& s) {
  const int64_t weight = shape.vocab_size * shape.hidden;
  Layer layer{shape.tie_embeddings ? "transformer.wte" : "lm_head", shape.tie_embeddings ? "Embedding" : "Linear", {{"weight", weight}}};
  layer.tie = shape.tie_embeddings ? "wte" : "";
  layer.is_unit = true;
  layer.input = s.element * s.hidden;
  layer.output = s.product * s.rows * shape.vocab_size;
  layer.kept = s.product * s.hidden + (conditions.autocast ? s.product * weight : 0);
  layer.working = s.element * (s.hidden + weight);
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

Model gpt(const GptShape& shape, const Conditions& conditions) {
  const Sizes sizes(shape, conditions);
  Model model;
  model.layers = {token_embedding(shape, sizes), positions(shape, sizes)};
  for (int64_t i = 0; i < shape.layers; ++i) {
    model.layers.push_back(block(shape, conditions, sizes, i));
  }
  model.layers.push_back(last_norm(shape, sizes));
  model.layers.push_back(head(shape, conditions, sizes));
  const int64_t logits = sizes.product * sizes.rows * shape.vocab_size;
  model.loss_kept = logits + kFloat * sizes.rows;
  model.loss_working = conditions.layer_list ? logits : 0;
  return model;
}

} // namespace trireme::estimate
