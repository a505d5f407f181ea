#include <trireme/plan/estimate/model.h>

#include <trireme/fused/logit_chunks.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>

namespace trireme::estimate {
namespace {

// Bytes of a number in a LayerNorm's statistics, the softmax and the loss.
constexpr int64_t kFloat = 4;

// As tensor::part_of(): all parts but the last are equal.
int64_t part_of(int64_t size, int64_t rank, int64_t ranks) {
  const int64_t most = (size + ranks - 1) / ranks;
  return std::clamp<int64_t>(size - rank * most, 0, most);
}

struct Sizes {
  Sizes(const models::TransformerShape& shape, const Conditions& conditions)
      : element(bytes_of(conditions.type)),
        product(conditions.autocast ? 2 : element),
        tensor(conditions.tensor_ranks),
        context(conditions.context_ranks),
        between(conditions.sequence_parallel ? tensor : 1),
        gathered(conditions.sequence_parallel ? tensor : 1),
        vocabulary(part_of(shape.vocab_size, conditions.tensor_rank, tensor)),
        rows(conditions.samples * shape.sequence_length / context),
        hidden(rows * shape.hidden),
        queries(rows * shape.query_width() / tensor),
        keys(rows * shape.key_width() / tensor),
        mlp(rows * part_of(shape.width_of_mlp(), conditions.tensor_rank, tensor)),
        inside(2 * (queries + keys) + (shape.qk_norm ? queries + keys : 0) + (shape.is_gated() ? 3 : 2) * mlp),
        scores(rows * shape.heads * shape.sequence_length / tensor) {}

  int64_t element; // bytes of the residual stream
  int64_t product; // bytes of inputs and outputs of matrix products
  int64_t tensor;  // ranks
  int64_t context;
  int64_t between;    // ranks that share what lies between the split matrices
  int64_t gathered;   // ranks that share what a column-parallel matrix keeps of its input
  int64_t vocabulary; // of the rank
  int64_t rows;       // tokens of a micro-batch on this rank
  int64_t hidden;     // elements of the residual stream
  int64_t queries;    // elements of the rank's queries
  int64_t keys;       // of its keys, and of its values
  int64_t mlp;        // of its part of the MLP's width
  int64_t inside;     // kept between a block's matrices: queries, keys, values, attention's output; in the MLP
                      // input and output of GELU, or gate, up and their product; what q/k norms read
  int64_t scores;     // of attention
};

// An all-reduce is two passes over the tensor. Sequence parallelism has an all-gather before the split part and a
// reduce-scatter after it.
void over_tensor_axis(Layer& layer, const Conditions& conditions, const Sizes& s, int forward, int backward,
                      int gathered_again) {
  if (s.tensor > 1) {
    layer.tensor_bytes = s.product * s.hidden;
    layer.tensor_passes_forward = forward;
    layer.tensor_passes_backward = backward + (conditions.sequence_parallel ? gathered_again : 0);
  }
}

// Bytes that a rank sends for attention to all keys. Ring: its keys and values are passed on C - 1 times, in backward
// again, followed by their fp32 gradients. Ulysses: all-to-all of queries, keys, values and results, and of their
// gradients.
void over_context_axis(Layer& layer, const Conditions& conditions, const Sizes& s) {
  const int64_t c = s.context;
  if (conditions.context_kind == context::Kind::ring) {
    layer.context_bytes_forward = 2 * s.product * s.keys * (c - 1);
    layer.context_bytes_backward = 2 * (s.product + std::max(kFloat, s.product)) * s.keys * (c - 1);
  } else {
    layer.context_bytes_forward = layer.context_bytes_backward = 2 * s.product * (s.queries + s.keys) * (c - 1) / c;
  }
}

// Peak of a block's backward in attention to keys of other ranks, in addition to what the block keeps: what attention
// holds, less what later parts of the block have freed.
int64_t working_of_shared_attention(const models::TransformerShape& shape, const Conditions& conditions,
                                    const Sizes& s) {
  const bool ring = conditions.context_kind == context::Kind::ring;
  // With dropout, for a whole block or half of one: weights, their mask, their product, and gradients. At least one
  // query's for all heads.
  const auto scores = [&](int64_t divisor) {
    const int64_t queries = conditions.samples * shape.heads * shape.sequence_length / s.context / s.tensor;
    const int64_t all = queries * (shape.sequence_length / (ring ? s.context : 1)) / divisor;
    return shape.dropout > 0 ? 4 * kFloat * std::min(all, std::max(queries, context::kScoresAtOnce)) : 0;
  };
  // Gradients of the result, and of queries, keys and values.
  int64_t bytes = s.product * s.queries + kFloat * (s.queries + 2 * s.keys);
  if (!ring) {
    bytes += scores(1);
  } else {
    const int64_t first = bytes + scores(1) + 4 * s.product * s.keys; // keys and values sent and received
    // Later blocks need half the scores. Keys and values have three copies; in addition to the first block's gradients,
    // those of two blocks are in communication.
    const int64_t behind = std::min<int64_t>(s.context, 4) - 1;
    const int64_t later = bytes + scores(2) + 2 * std::min<int64_t>(s.context, 3) * s.product * s.keys +
                          kFloat * (s.queries + 2 * (1 + behind) * s.keys);
    bytes = std::max(first, later);
  }
  return bytes - (shape.is_gated() ? 3 : 2) * s.product * s.mlp - s.product * s.hidden / s.gathered;
}

void token_embedding(Layer& layer, const models::TransformerShape& shape, const Conditions& conditions,
                     const Sizes& s) {
  layer.type = "Embedding";
  layer.reads_parameters_in_backward = false;
  layer.input = kIndexBytes * s.rows;
  layer.working = s.element * (s.hidden + s.vocabulary * shape.hidden);
  over_tensor_axis(layer, conditions, s, conditions.sequence_parallel ? 1 : 2, conditions.sequence_parallel ? 1 : 0, 0);
}

void bert_embeddings(Layer& layer, const models::TransformerShape& shape, const Sizes& s) {
  layer.type = "BertEmbeddings";
  layer.kept = (s.element * s.hidden + 2 * kFloat * s.rows) / s.between; // the sum
  layer.working = s.element * (2 * s.hidden / s.between + layer.parameters.front().numel);
}

void positions(Layer& layer, const models::TransformerShape& shape, const Sizes& s) {
  layer.type = "GptPositions";
  layer.working = s.element * (2 * s.hidden / s.between + shape.sequence_length * shape.hidden);
}

// Copies of the factors of the largest product: in FP8 and, on a GPU, also in the order that it reads and in fp32
// before the cast; else both factors and the result in fp32.
int64_t working_of_fp8(const Conditions& conditions, const Sizes& s, int64_t weight) {
  const int64_t wide = std::max(s.mlp, s.queries + 2 * s.keys);
  const int64_t all = s.hidden + wide + weight;
  return conditions.on_gpu ? 2 * all + kFloat * std::max({s.hidden, wide, weight}) : (1 + kFloat) * all;
}

void block(Layer& layer, const models::TransformerShape& shape, const Conditions& conditions, const Sizes& s) {
  const bool gated = shape.is_gated();
  layer.type = gated ? "LlamaBlock" : shape.family == models::TransformerShape::Family::bert ? "BertBlock" : "GptBlock";
  // The input and the sum after attention are in the residual stream, 2 are inputs of column-parallel matrices. A
  // LayerNorm keeps two numbers per row, an RMSNorm one.
  const int64_t gathered = conditions.fp8 ? 1 : s.gathered;
  layer.kept = 2 * s.element * s.hidden / s.between + 2 * s.product * s.hidden / gathered + s.product * s.inside +
               (gated ? 2 : 4) * kFloat * s.rows / s.between;
  const bool shared = s.context > 1; // then attention keeps no scores
  const bool drops = shape.dropout > 0;
  layer.kept += drops && !shared ? 3 * s.product * s.scores : kFloat * s.rows * shape.heads / s.tensor;
  if (shared &&
      (drops || conditions.context_kind == context::Kind::ulysses)) { // attention's output in the other order too
    layer.kept += s.product * s.queries;
  }
  int64_t weights = 0, largest = 0; // of the matrices
  for (const Parameter& parameter : layer.parameters) {
    weights += parameter.columns > 0 ? parameter.numel : 0;
    largest = std::max(largest, parameter.numel);
  }
  if (conditions.autocast) { // weights in the type of products
    layer.kept += s.product * weights;
  }
  for (const Parameter& parameter : layer.parameters) { // the input of an adapter after dropout
    if (shape.lora.dropout > 0 && parameter.name.ends_with("lora_A.weight")) {
      layer.kept += s.product * s.rows * parameter.columns / (parameter.whole ? s.between : 1);
    }
  }
  // Gradients of GELU's output and input (or of the product, gate and up) and of the residual stream, when GELU's
  // output (the product) has been freed; and of the largest weight. With a tensor axis also what is temporarily
  // gathered or summed.
  layer.working = s.element * s.hidden / s.between + (gated ? 2 : 1) * s.product * s.mlp + s.element * largest +
                  (s.tensor > 1 ? s.product * s.hidden : 0);
  if (conditions.fp8) {
    layer.working += working_of_fp8(conditions, s, largest);
  }
  over_tensor_axis(layer, conditions, s, 4, 4, conditions.fp8 ? 0 : 2);
  layer.tensor_passes_weights = s.tensor > 1 && conditions.sequence_parallel ? 2 : 0;
  over_context_axis(layer, conditions, s);
  if (shared) {
    layer.working = std::max(layer.working, working_of_shared_attention(shape, conditions, s));
  } else if (drops) {
    layer.working = std::max(layer.working, s.product * s.scores);
  }
  // Output gradients of the block, of the sum and of both norms. If types differ also those of the projections; with
  // dropout that of the last one, after its mask.
  layer.put_off = (drops ? 5 : 4) * s.element * s.hidden / s.between +
                  (conditions.autocast ? 2 * s.product * s.hidden / s.between : 0) + s.product * s.inside;
}

void last_norm(Layer& layer, const models::TransformerShape& shape, const Sizes& s) {
  layer.type = shape.is_gated() ? "RmsNorm" : "LayerNorm";
  layer.is_unit = false;
  layer.kept = (s.element * s.hidden + (shape.is_gated() ? kFloat : 2 * s.element) * s.rows) / s.between;
  layer.working = 2 * s.element * s.hidden / s.between;
  layer.put_off = s.element * s.hidden / s.between;
}

void head(Layer& layer, const models::TransformerShape& shape, const Conditions& conditions, const Sizes& s) {
  const int64_t weight = s.vocabulary * shape.hidden;
  layer.type = shape.tie_embeddings ? "Embedding" : "Linear";
  layer.output = s.product * s.rows * s.vocabulary;
  layer.kept = s.product * s.hidden / s.gathered + (conditions.autocast ? s.product * weight : 0);
  layer.working = s.element * (s.hidden / s.between + weight);
  if (conditions.sequence_parallel && s.tensor > 1) { // the input gathered again and in order, its gradient before
                                                      // the sum, and other ranks' parts of that
    layer.working += 4 * s.product * s.hidden;
  }
  layer.put_off = layer.output;
  over_tensor_axis(layer, conditions, s, conditions.sequence_parallel ? 1 : 0, conditions.sequence_parallel ? 1 : 2, 1);
}

// The parts of a BERT's head, but for the decoder.
void bert_head(Layer& layer, const models::TransformerShape& shape, const Conditions& conditions, const Sizes& s) {
  int64_t largest = 0;
  for (const Parameter& parameter : layer.parameters) {
    largest = std::max(largest, parameter.numel);
  }
  layer.is_unit = false;
  if (layer.name == "cls.predictions.transform") { // its input, GELU's and LayerNorm's
    layer.type = "BertHeadTransform";
    layer.kept = (3 * s.product * s.hidden + 2 * kFloat * s.rows) / s.between;
    layer.working = s.element * (2 * s.hidden / s.between + largest);
    layer.put_off = 2 * s.element * s.hidden / s.between;
    return;
  }
  if (layer.name == "cls.predictions") {
    layer.type = "BertDecoderBias";
    layer.input = layer.output = layer.working = s.product * s.rows * s.vocabulary;
    return;
  }
  const bool pools = layer.name == "bert.pooler";
  const int64_t vector = s.element * conditions.samples * shape.hidden;
  layer.type = pools ? "BertPooler" : "BertClassifier";
  layer.input = pools ? layer.input : vector;
  layer.output = vector;
  layer.kept = 2 * vector;
  layer.working = (pools ? layer.input : 0) + 2 * vector + s.element * largest;
  layer.put_off = vector;
}

// Adds a parameter, with the part that a rank of the tensor axis holds.
void add_parameter(Layer& layer, const models::LayerShape::Parameter& parameter, const Conditions& conditions) {
  using Split = models::LayerShape::Parameter::Split;
  const auto part = [&](int64_t size) { return part_of(size, conditions.tensor_rank, conditions.tensor_ranks); };
  const int64_t rows = parameter.split == Split::rows ? part(parameter.sizes.front()) : parameter.sizes.front();
  const bool whole = parameter.split == Split::none;
  if (parameter.sizes.size() == 1) {
    layer.parameters.push_back({parameter.name, rows, whole, 0});
    return;
  }
  const int64_t columns = parameter.split == Split::columns ? part(parameter.sizes.back()) : parameter.sizes.back();
  layer.parameters.push_back({parameter.name, rows * columns, whole, columns});
}

Layer layer_of(const models::LayerShape& part, const models::TransformerShape& shape, const Conditions& conditions,
               const Sizes& s) {
  using Kind = models::LayerShape::Kind;
  Layer layer{part.name, ""};
  for (const auto& parameter : part.parameters) {
    add_parameter(layer, parameter, conditions);
  }
  const bool is_bert = shape.family == models::TransformerShape::Family::bert;
  const bool is_decoder = part.kind == Kind::head && (!is_bert || part.name == "bert.embeddings.word_embeddings");
  layer.tie = shape.tie_embeddings && (part.kind == Kind::tokens || is_decoder) ? "tokens" : "";
  layer.is_unit = true;
  layer.input = layer.output = s.element * s.hidden / s.between;
  switch (part.kind) {
    case Kind::tokens:
      token_embedding(layer, shape, conditions, s);
      break;
    case Kind::positions:
      is_bert ? bert_embeddings(layer, shape, s) : positions(layer, shape, s);
      break;
    case Kind::block:
      block(layer, shape, conditions, s);
      break;
    case Kind::norm:
      last_norm(layer, shape, s);
      break;
    case Kind::head:
      is_decoder ? head(layer, shape, conditions, s) : bert_head(layer, shape, conditions, s);
      break;
  }
  return layer;
}

} // namespace

namespace {

// `parts`: the layers of the model; without adapters with at most one block. `cuts_logits`: the loss has the logits of
// a chunk of rows at a time (tensor::linear_cross_entropy()), and not all of them.
Model model_of(const std::vector<models::LayerShape>& parts, const models::TransformerShape& shape,
               const Conditions& conditions, bool cuts_logits) {
  const Sizes sizes(shape, conditions);
  Model model;
  for (const models::LayerShape& part : parts) {
    model.layers.push_back(layer_of(part, shape, conditions, sizes));
    const bool repeats = part.kind == models::LayerShape::Kind::block && !shape.lora.on();
    for (int64_t i = 1; repeats && i < shape.layers; ++i) { // blocks differ only by name
      model.layers.push_back(model.layers.back());
      model.layers.back().name = part.name.substr(0, part.name.rfind('.') + 1) + std::to_string(i);
    }
  }
  const int64_t most_columns = part_of(shape.vocab_size, 0, sizes.tensor); // every rank cuts as the first does
  const int64_t chunk = cuts_logits ? fused::logit_chunk_rows(sizes.rows, sizes.product * most_columns) : sizes.rows;
  const int64_t logits = sizes.product * chunk * sizes.vocabulary;
  const bool sums_in_fp32 = chunk < sizes.rows && sizes.product < kFloat;
  model.loss_kept = logits + kFloat * sizes.rows + (sums_in_fp32 ? kFloat * sizes.vocabulary * shape.hidden : 0);
  model.loss_tensor_bytes = sizes.tensor > 1 ? sizes.tensor * 2 * kFloat * sizes.rows : 0;
  model.loss_working = conditions.layer_list && !cuts_logits ? logits : 0;
  return model;
}

} // namespace

Model transformer(const models::TransformerShape& shape, const Conditions& conditions) {
  models::TransformerShape one = shape;
  one.layers = shape.lora.on() ? shape.layers : std::min<int64_t>(shape.layers, 1);
  return model_of(models::layer_shapes(one), shape, conditions, /*cuts_logits=*/!conditions.fp16);
}

Model bert(const models::BertOptions& options, int64_t tokens, const Conditions& conditions) {
  models::TransformerShape shape = models::shape_of(options);
  shape.sequence_length = tokens;
  models::BertOptions one = options;
  one.layers = options.lora.on() ? options.layers : std::min<int64_t>(options.layers, 1);
  Model model = model_of(models::bert_layer_shapes(one), shape, conditions, /*cuts_logits=*/false);
  if (options.head == models::BertOptions::Head::classes) {
    model.loss_kept = bytes_of(conditions.type) * conditions.samples * options.classes;
    model.loss_working = model.loss_tensor_bytes = 0;
  }
  return model;
}

} // namespace trireme::estimate
