#pragma once

#include <trireme/parallel/tensor/ranks.h>
#include <trireme/parallel/tensor/split_module.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>

/// Low-rank adapters (LoRA) of linear layers that are split over the ranks: y = W x + scale * B A dropout(x).
///
/// A [rank, in] and B [out, rank] are parameters "lora_A.weight" and "lora_B.weight" of the layer. If the layer splits
/// its output, B is split as W is and A is on every rank; if it splits its input, A is split and B is on every rank.
/// Only A x is exchanged, [B, T, rank], beside what the layer itself exchanges. Source: Hu et al. 2021,
/// arXiv:2106.09685.
namespace trireme::tensor {

struct AdapterOptions {
  /// At least 1.
  int64_t rank = 0;
  /// Factor of B A x; alpha / rank in the paper.
  double scale = 1;
  /// Probability of a zero in the input of A while training; in [0, 1).
  double dropout = 0;
};

/// One of the two matrices, or this rank's part of it.
class AdapterMatrixImpl : public torch::nn::Module, public SplitModule {
 public:
  /// Zeros of these sizes; `placement`: their place in the full matrix, or the default if they are all of it.
  AdapterMatrixImpl(at::IntArrayRef sizes, bucket::Placement placement);
  std::map<std::string, bucket::Placement> placements() const override;

  at::Tensor weight;

 private:
  bucket::Placement placement_;
};
TORCH_MODULE(AdapterMatrix);

/// The adapter of one layer; without one it costs a comparison.
class Adapter {
 public:
  AdapterMatrix lora_A{nullptr}; ///< absent before add()
  AdapterMatrix lora_B{nullptr};

  bool present() const { return !lora_A.is_empty(); }

 protected:
  /// Registers both in `layer`: A Kaiming-uniform (the same values for any number of ranks, if all start with the same
  /// random state), B zero. Errors: InputError for a rank below 1 or a dropout outside [0, 1).
  void add(torch::nn::Module& layer, const AdapterOptions& options, AdapterMatrix a, AdapterMatrix b);
  /// A dropout(x). `own_noise`: each rank drops other elements, because it has other elements of x.
  at::Tensor reduce(const at::Tensor& x, const Ranks& ranks, bool own_noise, bool training) const;
  /// y + scale * B reduced.
  at::Tensor expand(const at::Tensor& y, const at::Tensor& reduced) const;

 private:
  AdapterOptions options_;
};

} // namespace trireme::tensor
