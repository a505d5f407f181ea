#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme::models {

/// Low-rank adapters of a language model or a bert: Hu et al. 2021, arXiv:2106.09685 (parallel/tensor/adapter.h).
struct LoraOptions {
  /// Rank of the adapters.
  int64_t rank = 0;
  /// An adapter's result is multiplied by alpha / rank.
  double alpha = 0;
  /// Probability of a zero in the input of an adapter while training; in [0, 1).
  double dropout = 0;
  /// Names of the adapted linear layers, from linear_names(): "model.layers.0.self_attn.q_proj". Empty: no adapters.
  std::set<std::string> layers;
  /// Names of layers that are trained in full beside the adapters and saved with them, as PEFT's modules_to_save:
  /// layers_beside_adapters().
  std::set<std::string> whole_layers = {};
  /// Initial values: a folder of PEFT. Empty: A random from the model's seed, B zero.
  std::filesystem::path init_from = {};

  bool on() const { return !layers.empty(); }
  double scale() const { return alpha / static_cast<double>(rank); }
  /// Whether a parameter is an adapter's, or one of `whole_layers`: it is trained, and saved in a folder of PEFT.
  bool trains(std::string_view parameter) const;
};

/// Whether a parameter is an adapter's: its name ends with ".lora_A.weight" or ".lora_B.weight".
bool is_adapter(std::string_view parameter);

/// The shape and initial values of a GPT: pre-norm, learned positions, GELU (tanh form).
///
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
struct GptOptions {
  int64_t layers = 4;
  int64_t hidden = 128;
  /// Attention heads; divides `hidden`.
  int64_t heads = 4;
  /// Tokens per sample; the model has no positions beyond it.
  int64_t sequence_length = 128;
  int64_t vocab_size = 256;
  /// true: the output layer uses the token embedding's weight.
  bool tie_embeddings = true;
  /// Probability of a zero after the embeddings, the attention and the MLP; in [0, 1).
  double dropout = 0;
  /// Initial weights: safetensors with Hugging Face's GPT-2 names (a file, a folder or an index), or a run folder or
  /// checkpoint of Trireme. Empty: random from `seed`.
  std::filesystem::path init_from = {};
  LoraOptions lora = {};
  int64_t seed = 1234;
};

/// How rotary positions are stretched beyond the context a model was trained with: config.json's rope_scaling, with the
/// formulas of Hugging Face's transformers.
struct RopeScaling {
  enum class Kind { none, linear, dynamic, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  /// Positions of the original training; 0: the model's max_positions.
  int64_t original_positions = 0;
  /// llama3 (Llama 3.1): wavelengths between original_positions / high and original_positions / low are blended.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  /// yarn (Peng et al. 2023, arXiv:2309.00071): rotations within which frequencies are blended.
  double beta_fast = 32;
  double beta_slow = 1;
  /// yarn: multiplies cos and sin; 0: 0.1 ln(factor) + 1, or from the two below.
  double attention_factor = 0;
  double mscale = 0;
  double mscale_all_dim = 0;
  /// yarn: rounds the bounds of the blended range to whole dims.
  bool truncate = true;
};

/// The shape and initial values of a Llama: pre-norm with RMSNorm, rotary positions, SwiGLU, grouped queries. Covers
/// Llama 2 and 3, SmolLM2, TinyLlama, Mistral, Qwen2, Qwen2.5 and Qwen3.
///
/// Source: Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models", arXiv:2307.09288.
struct LlamaOptions {
  int64_t layers = 4;
  int64_t hidden = 128;
  /// Query heads.
  int64_t heads = 4;
  /// Heads of keys and values, each shared by heads / kv_heads query heads; divides `heads`. 0: `heads`.
  int64_t kv_heads = 0;
  /// Width of a head; 0: hidden / heads.
  int64_t head_dim = 0;
  /// Width of the MLP; 0: 8/3 of `hidden`, rounded up to a multiple of 64.
  int64_t intermediate = 0;
  /// Tokens per sample.
  int64_t sequence_length = 128;
  int64_t vocab_size = 256;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  /// config.json's max_position_embeddings, which scalings refer to; 0: `sequence_length`.
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-5;
  /// Biases of the projections of queries, keys and values (Qwen2).
  bool attention_bias = false;
  /// A bias of the output projection of attention too (Llama's own attention_bias has both).
  bool attention_output_bias = false;
  /// Biases of the three products of the MLP.
  bool mlp_bias = false;
  /// RMSNorm of queries and keys over each head's width, before rotation (Qwen3).
  bool qk_norm = false;
  /// Tokens that a token attends to, itself included; 0: all before it (Mistral: 4096).
  int64_t window = 0;
  /// Layers before this one attend to all tokens even if `window` is set (Qwen2's max_window_layers).
  int64_t first_window_layer = 0;
  /// true: the output layer uses the token embedding's weight.
  bool tie_embeddings = true;
  /// Initial weights: a Hugging Face folder, safetensors with its names (a file or an index), or a run folder or
  /// checkpoint of Trireme. Empty: random from `seed`.
  std::filesystem::path init_from = {};
  LoraOptions lora = {};
  int64_t seed = 1234;

  int64_t kv_heads_or_all() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t width_of_head() const { return head_dim == 0 ? hidden / heads : head_dim; }
  int64_t width_of_mlp() const { return intermediate == 0 ? (8 * hidden / 3 + 63) / 64 * 64 : intermediate; }
};

/// The sizes of a language model, whatever its type: what estimates, plans and checks ask for.
struct TransformerShape {
  enum class Family { gpt, llama, bert };
  Family family = Family::gpt;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 1;
  int64_t kv_heads = 0;     ///< 0: `heads`
  int64_t head_dim = 0;     ///< 0: hidden / heads
  int64_t intermediate = 0; ///< 0: 4 x hidden
  int64_t sequence_length = 0;
  int64_t vocab_size = 0;
  bool tie_embeddings = true;
  double dropout = 0;
  /// As in LlamaOptions.
  bool attention_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  LoraOptions lora = {};

  /// Features of all query heads, and of all key heads.
  int64_t query_width() const { return heads * width_of_head(); }
  int64_t key_width() const { return (kv_heads == 0 ? heads : kv_heads) * width_of_head(); }
  int64_t width_of_head() const { return head_dim == 0 ? hidden / heads : head_dim; }
  int64_t width_of_mlp() const { return intermediate == 0 ? 4 * hidden : intermediate; }
  /// The MLP is SwiGLU: two matrices up, one down.
  bool is_gated() const { return family == Family::llama; }
  /// Layers before the first block: tokens, and learned positions.
  int64_t embeddings() const { return family == Family::llama ? 1 : 2; }
  int64_t embedding_parameters() const {
    return (vocab_size + (family == Family::llama ? 0 : sequence_length)) * hidden;
  }
  /// Elements of a block's matrices.
  int64_t block_parameters() const {
    return 2 * hidden * (query_width() + key_width()) + (is_gated() ? 3 : 2) * hidden * width_of_mlp();
  }
};

TransformerShape shape_of(const GptOptions& options);
TransformerShape shape_of(const LlamaOptions& options);

/// A language model of any family.
using LanguageOptions = std::variant<GptOptions, LlamaOptions>;
TransformerShape shape_of(const LanguageOptions& options);

/// A layer of a language model.
struct LayerShape {
  enum class Kind { tokens, positions, block, norm, head };
  struct Parameter {
    std::string name;
    std::vector<int64_t> sizes;
    /// How tensor ranks split it: not at all, by rows (column-parallel layers and vocabularies), or by columns.
    enum class Split { none, rows, columns } split = Split::none;
  };
  Kind kind;
  /// In checkpoints: "transformer.h.0", "model.layers.0".
  std::string name;
  std::vector<Parameter> parameters;
};

/// Lists the layers of a gpt or llama in order, with Hugging Face's names. The module, the layers of a pipeline and the
/// estimate are made from it. A tied head repeats the token embedding, by name and parameters.
std::vector<LayerShape> layer_shapes(const TransformerShape& shape);
inline std::vector<LayerShape> layer_shapes(const GptOptions& options) {
  return layer_shapes(shape_of(options));
}
inline std::vector<LayerShape> layer_shapes(const LlamaOptions& options) {
  return layer_shapes(shape_of(options));
}

/// Names of the linear layers of the blocks, in order: those that can have an adapter.
std::vector<std::string> linear_names(const std::vector<LayerShape>& shapes);
/// Names of layers that must be trained in full where others have adapters, because they are new: a bert's classifier.
std::set<std::string> layers_beside_adapters(const std::vector<LayerShape>& shapes);

/// A small convolutional classifier for images [B, channels, side, side].
struct CnnOptions {
  int64_t channels = 1;
  /// Height and width in pixels; a multiple of 4, because it is halved twice.
  int64_t side = 28;
  int64_t classes = 10;
  /// Filters of the first convolution; the second has twice as many.
  int64_t width = 32;
  double dropout = 0;
  /// Initial weights: a safetensors file with this model's own names, or a run folder or checkpoint of Trireme. Empty:
  /// random from `seed`.
  std::filesystem::path init_from = {};
  int64_t seed = 1234;
};

/// The shape and initial values of a BERT: post-norm, learned positions, GELU (exact form).
///
/// Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers", arXiv:1810.04805.
struct BertOptions {
  /// What follows the blocks.
  enum class Head {
    /// Logits of the vocabulary for each token, [B, T, V].
    masked_lm,
    /// Logits of `classes` for each sample, [B, classes], from the first token.
    classes,
    /// A vector for each sample, [B, hidden]: the mean over its tokens, divided by its norm. Reimers & Gurevych 2019,
    /// arXiv:1908.10084.
    sentence,
    /// The hidden values of each token, [B, T, hidden].
    none,
  };
  int64_t layers = 4;
  int64_t hidden = 128;
  /// Attention heads; divides `hidden`.
  int64_t heads = 4;
  /// Width of the MLP in a block; 0: four times `hidden`.
  int64_t intermediate = 0;
  /// Tokens per sample; the model has no positions beyond it.
  int64_t sequence_length = 128;
  int64_t vocab_size = 258;
  /// Rows of the segment embedding; without given segments every token is of segment 0.
  int64_t segments = 2;
  /// Probability of a zero after the embeddings, in the attention, after attention and MLP, and before the classes; in
  /// [0, 1).
  double dropout = 0;
  double layer_norm_eps = 1e-12;
  Head head = Head::masked_lm;
  int64_t classes = 2;
  /// Initial weights: a Hugging Face folder, safetensors with its names (a file or an index), or a run folder or
  /// checkpoint of Trireme. Empty: random from `seed`.
  std::filesystem::path init_from = {};
  LoraOptions lora = {};
  int64_t seed = 1234;

  int64_t width_of_mlp() const { return intermediate > 0 ? intermediate : 4 * hidden; }
};

/// Its sizes, without segments and head.
TransformerShape shape_of(const BertOptions& options);

/// As above. Word embedding and the rest of the embeddings are Kind::tokens and Kind::positions; what `head` adds are
/// parts of Kind::head.
std::vector<LayerShape> bert_layer_shapes(const BertOptions& options);

/// AlexNet for images [B, channels, height, width].
///
/// Source: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997.
struct AlexNetOptions {
  int64_t channels = 3;
  int64_t classes = 10;
  /// Height and width that the first convolution needs at least.
  static constexpr int64_t kSmallestSide = 63;
  /// Height and width to which images are enlarged before the first convolution; 0: not enlarged.
  int64_t resize = 0;
  /// Width of the two hidden layers of the classifier.
  int64_t hidden = 4096;
  double dropout = 0.5;
  /// Initial weights: safetensors with torchvision's names, or a run folder or checkpoint of Trireme. Empty: random
  /// from `seed`.
  std::filesystem::path init_from = {};
  int64_t seed = 1234;
};

} // namespace trireme::models
