#pragma once

#include <trireme/models/options.h>
#include <trireme/parallel/context/options.h>
#include <trireme/precision/options.h>

#include <cstdint>
#include <string>
#include <vector>

/// Formulas for a run: memory of each rank, and bytes on the wire. Nothing is built or measured.
namespace trireme::estimate {

/// Bytes of a token, a label, or the index of a maximum.
inline constexpr int64_t kIndexBytes = 8;

using precision::Type;

struct Parameter {
  std::string name;
  /// Elements that one rank holds; for a matrix split over the tensor axis, its part (the largest if parts differ).
  int64_t numel = 0;
  /// Every rank of the tensor axis holds all of it.
  bool whole = false;
  /// Columns of the part of a matrix that a rank holds; 0: a vector.
  int64_t columns = 0;
  /// It has a gradient, and a place in the optimizer.
  bool trained = true;

  std::vector<int64_t> sizes() const {
    return columns > 0 ? std::vector<int64_t>{numel / columns, columns} : std::vector<int64_t>{numel};
  }
};

/// One layer of a model that is cut into layers. Bytes are per micro-batch.
struct Layer {
  /// Its name in checkpoints: "transformer.h.0".
  std::string name;
  /// The class, which partition "type:REGEX" matches.
  std::string type;
  std::vector<Parameter> parameters = {};
  /// Layers with the same key share their parameters; empty: not shared.
  std::string tie = {};
  /// ZeRO stage 3 gathers and frees it as one unit if the model is in one piece. In a list of layers each one is a
  /// unit.
  bool is_unit = false;
  /// Its backward reads the parameters; an embedding's backward reads only indices.
  bool reads_parameters_in_backward = true;
  /// Bytes that autograd keeps from forward to backward, including the input if backward needs it.
  int64_t kept = 0;
  /// The input: kept instead if the layer begins a group that is recomputed.
  int64_t input = 0;
  /// The output: what a pipeline sends.
  int64_t output = 0;
  /// Peak of backward in addition to `kept`: gradients of activations and new gradients of parameters.
  int64_t working = 0;
  /// Bytes that a split backward holds, in addition to `kept`, until it computes the gradients of weights: gradients of
  /// the outputs of all submodules with weights.
  int64_t put_off = 0;

  /// Bytes of one pass over the tensor axis: an all-gather or a reduce-scatter of them; an all-reduce is two passes.
  /// Recomputation repeats the forward passes.
  int64_t tensor_bytes = 0;
  int tensor_passes_forward = 0;
  int tensor_passes_backward = 0;
  /// Further passes of a split backward for the gradients of weights: with sequence parallelism it gathers again the
  /// output gradients of layers split by rows.
  int tensor_passes_weights = 0;
  /// Bytes that a rank sends along the context axis.
  int64_t context_bytes_forward = 0;
  int64_t context_bytes_backward = 0;
};

struct Model {
  std::vector<Layer> layers;
  /// Bytes that the loss keeps for backward (the logits, of a chunk if they need several, and a number per row), and
  /// its peak beside that.
  int64_t loss_kept = 0;
  int64_t loss_working = 0;
  /// Bytes that the loss gathers over the tensor axis in forward: for every rank and token, the log of the sum and the
  /// target's logit.
  int64_t loss_tensor_bytes = 0;

  /// Elements of all parameters, and of the trained ones; shared ones count once.
  int64_t parameters() const;
  int64_t trained_parameters() const;
  /// Index of the first layer with a trained parameter: layers before it have no backward. The number of layers if
  /// there is none.
  int64_t first_trained() const;
};

/// Conditions of a run that determine a model's activations.
struct Conditions {
  /// Samples of a micro-batch.
  int64_t samples = 1;
  /// Type of parameters and activations.
  Type type = Type::fp32;
  /// Parameters and the residual stream are fp32, matrix products in a 2-byte type.
  bool autocast = false;
  /// The model is a list of layers; its loss keeps the logits instead of overwriting them with their gradient.
  bool layer_list = false;

  /// Products are in fp16; their loss has all logits at once.
  bool fp16 = false;

  /// Ranks that share every matrix, and ranks that share every sequence.
  int64_t tensor_ranks = 1;
  int64_t context_ranks = 1;
  /// The tensor rank described; the first has the largest part of the vocabulary.
  int64_t tensor_rank = 0;
  context::Kind context_kind = context::Kind::ring;
  /// Norms and residual stream, which lie between the split matrices, are split by tokens over the tensor axis.
  bool sequence_parallel = false;

  /// Products of the blocks' matrices are in FP8, emulated unless the rank has a GPU. Factors are copied.
  bool fp8 = false;
  bool on_gpu = false;
};

/// Describes models::Gpt or models::Llama as seen by one rank of the tensor and the context axis.
///
/// A block of a GPT with B samples of T tokens, H hidden and A heads keeps 16 BTH elements for backward. These are the
/// input, both LayerNorms' outputs, queries, keys and values (3), attention's output, the sum after it, GELU's input
/// and output (4 each). It also keeps 4 BAT bytes for the softmax and 16 BT for the LayerNorms. With dropout attention
/// keeps three [B, A, T, T]; other dropouts keep no mask. A Llama keeps keys and values of its own widths, 3 times the
/// MLP's width (gate, up and their product), and 8 BT bytes for the RMSNorms.
///
/// Tensor axis (Shoeybi et al. 2019, arXiv:1909.08053): c_attn and c_fc are split by columns, both c_proj by rows,
/// embedding and head by the vocabulary; everything else is whole. Twelve of the 16 are split: queries to attention's
/// output (4) and GELU's (8). With sequence_parallel (Korthikanti et al. 2022, arXiv:2205.05198) the input, the sum and
/// the norms' outputs are split too, and backward gathers the inputs of matrices again.
///
/// Context axis: everything is split. Attention to tokens of other ranks keeps no [B, A, T, T], not even with dropout.
/// With Ulysses, and with dropout, its output exists a second time in another order. In backward a ring holds three
/// copies of keys and values, and the fp32 gradients that it passes on.
Model transformer(const models::TransformerShape& shape, const Conditions& conditions);
inline Model gpt(const models::GptOptions& options, const Conditions& conditions) {
  return transformer(models::shape_of(options), conditions);
}

/// Describes models::bert_layers() for samples of `tokens` tokens. A block keeps as much as a GPT's: the inputs of both
/// LayerNorms are the sums, and their outputs the inputs of the matrices.
Model bert(const models::BertOptions& options, int64_t tokens, const Conditions& conditions);

/// Describes models::alexnet_layers(). Errors: InputError without `resize`: the size of the images is unknown.
Model alexnet(const models::AlexNetOptions& options, const Conditions& conditions);

/// Describes models::Cnn.
Model cnn(const models::CnnOptions& shape, const Conditions& conditions);

/// Bytes of the fp32 parameters of n transformer layers of hidden size h, without embeddings and head: 4nh(13 + 12h).
/// Source: docs/memory.md, "The textbook's formulas".
constexpr int64_t textbook_model_bytes(int64_t n, int64_t h) {
  return 4 * n * h * (13 + 12 * h);
}

/// Bytes of the fp32 activations of n layers for b samples of l tokens with m heads, attention's probabilities and
/// dropout kept: nblh(67 + 9ml/h). Source: as above; Korthikanti et al. 2022, arXiv:2205.05198, count 66.
constexpr int64_t textbook_activation_bytes(int64_t n, int64_t b, int64_t l, int64_t h, int64_t m) {
  return n * b * l * (67 * h + 9 * m * l);
}

} // namespace trireme::estimate
