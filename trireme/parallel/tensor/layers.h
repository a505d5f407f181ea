#pragma once

#include <trireme/parallel/tensor/adapter.h>
#include <trireme/parallel/tensor/fp8_layer.h>
#include <trireme/parallel/tensor/ranks.h>
#include <trireme/parallel/tensor/split_module.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>

/// Layers of which each rank has a part. With one rank each is the torch::nn layer it derives from.
///
/// Initial values do not depend on the number of ranks, if all ranks of the group start with the same random state:
/// each rank makes the full layer's and keeps its part. Source: Shoeybi et al. 2019, arXiv:1909.08053.
namespace trireme::tensor {

/// The random state before a layer's own initial values were drawn: all ranks draw those of the full layer
/// instead.
struct BeforeFirstValues {
  explicit BeforeFirstValues(const Ranks& ranks);
  /// Constructs the full layer from that random state.
  template <typename Layer, typename Options>
  Layer whole(const Options& options) const {
    restore();
    return Layer(options);
  }

 private:
  void restore() const;
  at::Tensor state_;
};

/// y = x W^T + b with the output's features split: weight [part of out, in], bias [part of out]. Takes x that all ranks
/// have (or parts of the sequence, Ranks::sequence_parallel) and returns this rank's features.
class ColumnParallelLinearImpl : BeforeFirstValues,
                                 public torch::nn::LinearImpl,
                                 public SplitModule,
                                 public Adapter,
                                 public Fp8Layer {
 public:
  /// `parts`: number of equal blocks of the output, each of which is split (queries, keys and values for instance).
  /// Errors: InputError for fewer features than ranks, or if `parts` does not divide the output.
  ColumnParallelLinearImpl(int64_t in, int64_t out, const Ranks& ranks, bool bias = true, int64_t parts = 1);
  at::Tensor forward(const at::Tensor& x);
  /// The same without the bias, if another pass adds it.
  at::Tensor project(const at::Tensor& x);
  /// y + the adapter's result for x; y if there is no adapter. For layers whose products are computed together.
  at::Tensor adapted(const at::Tensor& y, const at::Tensor& x) const;
  /// Adds an adapter (adapter.h), which all of the above then include. Errors: InputError for options out of range.
  void adapt(const AdapterOptions& options);
  std::map<std::string, bucket::Placement> placements() const override;

 private:
  Ranks ranks_;
  int64_t in_;
  int64_t out_;
  int64_t parts_;
};
TORCH_MODULE(ColumnParallelLinear);

/// y = x W^T + b with the input's features split: weight [out, part of in], the full bias [out] on every rank. Takes
/// this rank's features and returns the sum over all ranks (or this rank's part of its sequence).
class RowParallelLinearImpl : BeforeFirstValues,
                              public torch::nn::LinearImpl,
                              public SplitModule,
                              public Adapter,
                              public Fp8Layer {
 public:
  /// Errors: InputError for fewer features than ranks.
  RowParallelLinearImpl(int64_t in, int64_t out, const Ranks& ranks, bool bias = true);
  at::Tensor forward(const at::Tensor& x);
  /// The same without the bias.
  at::Tensor project(const at::Tensor& x);
  /// As ColumnParallelLinear's.
  void adapt(const AdapterOptions& options);
  std::map<std::string, bucket::Placement> placements() const override;

 private:
  at::Tensor adapted(const at::Tensor& y, const at::Tensor& x) const;

  Ranks ranks_;
  int64_t in_;
  int64_t out_;
};
TORCH_MODULE(RowParallelLinear);

/// An embedding with its rows split: weight [part of the vocabulary, hidden]. The vocabulary needs at least one row per
/// rank, and no padding. Takes tokens [B, T] that all ranks have and returns the sum over all ranks, [B, T, hidden] or
/// [B, T/N, hidden].
class VocabParallelEmbeddingImpl : BeforeFirstValues, public torch::nn::EmbeddingImpl, public SplitModule {
 public:
  VocabParallelEmbeddingImpl(int64_t vocabulary, int64_t hidden, const Ranks& ranks);
  at::Tensor forward(const at::Tensor& tokens_BT);
  /// The tied output layer: x [B, T or T/N, hidden] -> this rank's columns of the logits, [B, T, part of
  /// V].
  at::Tensor logits(const at::Tensor& x);
  std::map<std::string, bucket::Placement> placements() const override;

 private:
  Ranks ranks_;
  int64_t vocabulary_;
  int64_t hidden_;
};
TORCH_MODULE(VocabParallelEmbedding);

} // namespace trireme::tensor
