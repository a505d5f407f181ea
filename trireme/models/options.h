#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::models {

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
  std::filesystem::path init_from;
  int64_t seed = 1234;
};

/// A layer of a GPT.
struct GptPart {
  enum class Kind { tokens, positions, block, norm, head };
  struct Parameter {
    std::string name;
    std::vector<int64_t> sizes;
  };
  Kind kind;
  /// In checkpoints: "transformer.h.0".
  std::string name;
  std::vector<Parameter> parameters;
};

/// Lists the layers of a GPT in order, with Hugging Face's names. The module, the layers of a pipeline and the estimate
/// are made from it. A tied head repeats the token embedding, by name and parameters.
std::vector<GptPart> gpt_parts(const GptOptions& options);

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
  std::filesystem::path init_from;
  int64_t seed = 1234;
};

/// The shape and initial values of a BERT: post-norm, learned positions, GELU (exact form).
///
/// Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers", arXiv:1810.04805.
struct BertOptions {
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
  /// Probability of a zero after the embeddings, in the attention and after attention and MLP; in [0, 1).
  double dropout = 0;
  int64_t seed = 1234;
};

/// AlexNet for images [B, channels, height, width].
///
/// Source: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997.
struct AlexNetOptions {
  int64_t channels = 3;
  int64_t classes = 10;
  /// Height and width to which images are enlarged before the first convolution; 0: not enlarged. The first convolution
  /// needs at least 63 x 63 pixels.
  int64_t resize = 0;
  /// Width of the two hidden layers of the classifier.
  int64_t hidden = 4096;
  double dropout = 0.5;
  int64_t seed = 1234;
};

} // namespace trireme::models
