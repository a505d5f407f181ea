#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

namespace trireme::models {

/// Keys and values of the tokens that a language model has read, for generation: a further token costs the work of one
/// token. B rows are texts of their own lengths; A heads of queries, K of keys and values, of this rank.
///
/// Memory: 2 layers B K capacity D elements of the model's type, taken when the prompts are read.
class KeyValueCache {
 public:
  /// Room for `capacity` tokens in each row.
  KeyValueCache(int64_t rows, int64_t capacity);

  /// Forgets what was read: the model reads prompts next, [B, reach()] tokens, of which row b has lengths[b] and
  /// padding after them. Errors: InputError for a length outside 1 to `capacity`.
  void begin(const std::vector<int64_t>& lengths);
  /// The model reads one more token of each row next, [B, 1]. Errors: InputError if a row is full.
  void next();

  int64_t rows() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }
  /// Tokens of each row, with those being read.
  const std::vector<int64_t>& lengths() const { return lengths_; }

  // For models, whose layers read the tokens one after the other.

  /// Whether the tokens being read are the prompts, at the positions 0 to T-1. Otherwise they are one token a row.
  bool reads_prompts() const { return reads_prompts_; }
  /// The length of the longest row.
  int64_t reach() const;
  /// Keeps the keys and values [B, K, T, D] of the prompts, already turned by their positions.
  void store(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  /// softmax(Q K^T / sqrt(D)) V of one token a row, q [B, A, 1, D], k and v [B, K, 1, D], which it keeps. The token
  /// sees itself and those before it, `window` of them at most (0: all). cos and sin [positions, D/2], of at least
  /// reach() positions, turn q and k (fused::rotate()); undefined: they stay. Returns [B, A, 1, D], of v's type.
  at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& cos = {}, const at::Tensor& sin = {}, int64_t window = 0);
  /// The positions of the last token of each row, int64 [B].
  at::Tensor positions(const at::Device& device);
  /// The rows of tokens in one row without padding, [B, T, H] -> [1, N, H]: layers that treat each token alone need not
  /// compute the padding of shorter prompts. x itself if there is none. Cost: a copy.
  at::Tensor packed(const at::Tensor& x_BTH);
  /// Back, with zeros as padding, [1, N, H] -> [B, T, H]: for attention.
  at::Tensor padded(const at::Tensor& x_1NH);
  /// What packed() returned, of the last token of each row only, [B, 1, H].
  at::Tensor last_of(const at::Tensor& x);

 private:
  /// True where a token does not see another, bool [B, 1, reach]; undefined if all see all.
  at::Tensor hidden(int64_t window, const at::Device& device);
  bool has_padding() const;
  /// Where the N tokens are among the B reach() of the prompts, int64 [N].
  at::Tensor places(const at::Device& device);

  struct Layer {
    at::Tensor k, v; // [B, K, capacity, D]
  };
  /// The same where there is no kernel, with q and k turned and k and v kept.
  at::Tensor aten_attend(const Layer& kept, const at::Tensor& q, int64_t window);

  int64_t capacity_;
  std::vector<int64_t> lengths_;
  bool reads_prompts_ = true;
  std::vector<Layer> layers_;
  at::Tensor positions_, places_;
  std::map<int64_t, at::Tensor> hidden_; // by window, of this token
};

} // namespace trireme::models
