#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <string>

namespace trireme::parallel {

/// What one layer of batch normalisation has besides its input; tensors are [C], and may be undefined.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

/// The names of a layer's two operations in errors, dumps and records. The texts must live for ever.
struct StatisticsNames {
  StatisticsNames() = default;
  /// "batch statistics of `layer`" and "gradients of batch statistics of `layer`". For set-up code: the names are never
  /// freed.
  explicit StatisticsNames(const std::string& layer);

  const char* forward = "batch statistics";
  const char* backward = "gradients of batch statistics";
};

/// Batch normalisation, in training, of the inputs of all ranks of `ranks` together: y = (x - mean) / sqrt(var + eps) *
/// weight + bias, where mean and var are of each channel over all ranks' rows.
///
/// x: [N, C, ...] of any floating type; N and what follows C may differ between ranks and may be 0. The result and the
/// gradient of x are those of one process that has all rows; the gradients of weight and bias are this rank's part of
/// the sum, as a reducer wants them. Running statistics move by `momentum` to the mean and the unbiased variance of all
/// rows, and stay equal on all ranks. Statistics are computed in float, of double inputs in double.
///
/// Collective, forward and backward, in the same order on every rank. Nothing else may use `ranks`: backward runs while
/// gradients are reduced. Cost, C channels and N ranks: an all-gather of 2C+1 numbers a rank forward, an all-reduce of
/// 2C backward; in bf16 and fp16 also copies of x and of its gradient in float, for the time of the call. Errors:
/// InputError for x of less than two dims, for another number of channels than the tensors have, and, on the CPU, where
/// all ranks together have less than two values a channel; Error for a backward with create_graph. `names`: of the
/// layer, for errors of operations that not all ranks call. Source: Ioffe and Szegedy 2015, arXiv:1502.03167; over
/// ranks: Peng et al. 2018, arXiv:1711.07240.
at::Tensor sync_batch_norm(const at::Tensor& x, const BatchNormTensors& layer, double momentum, double eps,
                           const comm::Group& ranks, const StatisticsNames& names = {});

/// A layer of batch normalisation over the ranks of a group, for a model of one's own. In evaluation it is as
/// BatchNorm: without a word to the others.
///
///   auto norm = SyncBatchNorm(torch::nn::BatchNormOptions(64), world.group());
///
/// Its parameters and buffers have the names of torch::nn::BatchNorm1d to 3d, so that checkpoints fit either. Inputs
/// have two dims or more. Construction is collective: it makes a group of its own of the same ranks. A clone() shares
/// it.
class SyncBatchNormImpl : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const comm::Group& ranks);

  /// Names the layer in errors ("layer features.1"); before, it is "SyncBatchNorm 3 (64 features)", counted as they are
  /// made.
  void set_name(const std::string& name);

  at::Tensor forward(const at::Tensor& x);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& x) override;

 private:
  comm::Group ranks_;
  StatisticsNames names_;
};
TORCH_MODULE(SyncBatchNorm);

/// Gives each SyncBatchNorm of a model its name there ("layer features.1"). An engine and DataParallel do it.
void name_norms(torch::nn::Module& model);

/// A group of the same ranks for statistics alone. Collective.
comm::Group statistics_group(const comm::Group& ranks);

} // namespace trireme::parallel
