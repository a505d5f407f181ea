#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme::models {

/// The shape and start of a GPT: pre-norm, learned positions, GELU (tanh form).
///
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
struct GptOptions {
  int64_t layers = 4;
  int64_t hidden = 128;
  /// Attention heads; divides `hidden`.
  int64_t heads = 4;
  /// Tokens of one sample; positions beyond it do not exist.
  int64_t sequence_length = 128;
  int64_t vocab_size = 256;
  /// true: the output layer uses the token embedding's weight.
  bool tie_embeddings = true;
  /// Probability of a zero after the embeddings, the attention and the MLP; in [0, 1).
  double dropout = 0;
  /// Weights to start from: safetensors with Hugging Face's GPT-2 names (a file, a folder or
  /// an index). Empty: random from `seed`.
  std::filesystem::path init_from;
  int64_t seed = 1234;
};

/// A small convolutional classifier for images [B, channels, side, side].
struct CnnOptions {
  int64_t channels = 1;
  /// Height and width in pixels; a multiple of 4, because it is halved twice.
  int64_t side = 28;
  int64_t classes = 10;
  /// Filters of the first convolution; the second has twice as many.
  int64_t width = 32;
  double dropout = 0;
  /// Weights to start from: a safetensors file with this model's own names. Empty: random from `seed`.
  std::filesystem::path init_from;
  int64_t seed = 1234;
};

} // namespace trireme::models
