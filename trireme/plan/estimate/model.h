#pragma once

#include <trireme/models/options.h>
#include <trireme/parallel/context/options.h>
#include <trireme/precision/options.h>

#include <cstdint>
#include <string>
#include <vector>

/// What a run will need, as formulas: memory of each rank, and bytes on the wire. Nothing is built or measured here.
namespace trireme::estimate {

/// A token, a label, the place that a maximum came from.
inline constexpr int64_t kIndexBytes = 8;

using precision::Type;

struct Parameter {
  std::string name;
  /// Numbers that one rank holds: of a matrix that the tensor axis divides, its part (of an uneven division the
  /// largest).
  int64_t numel = 0;
  /// All ranks of the tensor axis hold the same.
  bool whole = false;
  /// Of a matrix, those that a rank holds, which are of rows with so many numbers; 0: of a vector.
  int64_t columns = 0;

  std::vector<int64_t> sizes() const {
    return columns > 0 ? std::vector<int64_t>{numel / columns, columns} : std::vector<int64_t>{numel};
  }
};

/// One layer of a model that is cut into layers. Bytes are those of one micro-batch.
struct Layer {
  /// Its name in checkpoints: "transformer.h.0".
  std::string name;
  /// The class, as partition "type:REGEX" sees it.
  std::string type;
  std::vector<Parameter> parameters = {};
  /// Layers with the same key share their parameters; empty: nobody does.
  std::string tie = {};
  /// Gathered and freed as a whole by ZeRO stage 3 when the model is in one piece. A model that is a list of layers has
  /// each of them for a unit.
  bool is_unit = false;
  /// Its backward reads the parameters; an embedding's reads indices only.
  bool reads_parameters_in_backward = true;
  /// What autograd keeps from forward to backward, the input included where backward needs it.
  int64_t kept = 0;
  /// The input: what is kept instead when the layer begins a group that is recomputed.
  int64_t input = 0;
  /// The output: what a pipeline sends on.
  int64_t output = 0;
  /// The most that backward holds beside what is kept: gradients of activations and fresh gradients of parameters.
  int64_t working = 0;
  /// What a split backward holds beside what is kept until it computes the gradients of weights: gradients of the
  /// outputs of all parts that have some.
  int64_t put_off = 0;

  /// What the tensor axis moves for this layer. A pass over `tensor_bytes` is an all-gather or a reduce-scatter of
  /// them, an all-reduce is two; recomputation repeats the forward ones.
  int64_t tensor_bytes = 0;
  int tensor_passes_forward = 0;
  int tensor_passes_backward = 0;
  /// What a split backward needs once more for the gradients of weights: those behind layers that are split by rows,
  /// gathered with sequence parallelism.
  int tensor_passes_weights = 0;
  /// Bytes that a rank sends along the context axis.
  int64_t context_bytes_forward = 0;
  int64_t context_bytes_backward = 0;
};

struct Model {
  std::vector<Layer> layers;
  /// What the loss keeps for backward (the logits and a number a row), and holds beside that.
  int64_t loss_kept = 0;
  int64_t loss_working = 0;
  /// Bytes that the loss gathers over the tensor axis in forward: of every rank and token the logarithm of the sum, and
  /// the target's logit.
  int64_t loss_tensor_bytes = 0;

  /// Numbers in all parameters, shared ones once.
  int64_t parameters() const;
};

/// How a model is run, as far as its activations depend on it.
struct Conditions {
  /// Samples of a micro-batch.
  int64_t samples = 1;
  /// Type of parameters and activations.
  Type type = Type::fp32;
  /// Parameters and the residual stream fp32, matrix products in a type of 2 bytes.
  bool autocast = false;
  /// The model is a list of layers: its loss keeps the logits as they are instead of writing their gradient over them.
  bool layer_list = false;

  /// Ranks that share every matrix, and ranks that share every sequence.
  int64_t tensor_ranks = 1;
  int64_t context_ranks = 1;
  /// Whose part of the vocabulary is described: the first rank has most of it.
  int64_t tensor_rank = 0;
  context::Kind context_kind = context::Kind::ring;
  /// What lies between the divided matrices (norms, residual stream) is divided by tokens over the tensor axis.
  bool sequence_parallel = false;
};

/// Describes models::Gpt, as one rank of the tensor and the context axis has it. For a block with B samples of T
/// tokens, H hidden and A heads backward keeps, in elements of BTH: the input, both LayerNorms' outputs, queries, keys
/// and values (3), the attention's output, the sum after it, and GELU's input and output (4 each): 16. Beside that 4
/// BAT bytes for the softmax and 16 BT for the LayerNorms. With dropout attention keeps three [B, A, T, T], and each
/// dropout its noise.
///
/// Tensor axis (Shoeybi et al. 2019, arXiv:1909.08053): c_attn and c_fc are divided by columns, both c_proj by rows,
/// embedding and head by the vocabulary; everything else is whole. Of the 16, queries to attention's output (4) and
/// GELU's (8) are divided; with sequence_parallel (Korthikanti et al. 2022, arXiv:2205.05198) the input, the sum and
/// the norms' outputs too: what a matrix takes is gathered again in backward. Context axis: all is divided. Attention
/// to tokens of other ranks keeps no [B, A, T, T] with dropout either; its output is there a second time, in another
/// order, with Ulysses and with dropout. In backward a ring holds keys and values in three places, and in fp32 their
/// gradients on the way.
Model gpt(const models::GptOptions& options, const Conditions& conditions);

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
