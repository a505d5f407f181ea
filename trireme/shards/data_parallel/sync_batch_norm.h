#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <string>

namespace trireme::parallel {

/// Parameters and running statistics of a batch normalisation layer: tensors [C], which may be undefined.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

/// Names of a layer's two collectives in errors, dumps and records. The texts must never be freed.
struct StatisticsNames {
  StatisticsNames() = default;
  /// Makes "batch statistics of `layer`" and "gradients of batch statistics of `layer`". For set-up code: the names are
  /// never freed.
  explicit StatisticsNames(const std::string& layer);

  const char* forward = "batch statistics";
  const char* backward = "gradients of batch statistics";
};

/// Batch normalisation in training over the inputs of all ranks of `ranks`: y = (x - mean) / sqrt(var + eps) * weight +
/// bias. mean and var are computed per channel over all ranks' rows.
///
/// x: [N, C, ...] of any floating type; N and the dims after C may differ between ranks and may be 0. The result and
/// the gradient of x equal those of one process with all rows. The gradients of weight and bias are this rank's
/// summand, as a reducer expects. Running statistics move by `momentum` towards the mean and unbiased variance of all
/// rows, and stay equal on all ranks. Statistics are computed in float, or in double for double inputs.
///
/// Collective in forward and backward, in the same order on every rank. `ranks` must not be used for anything else,
/// because backward runs while gradients are reduced. Cost for C channels and N ranks: forward all-gathers 2C+1 numbers
/// per rank, backward all-reduces 2C. With bf16 and fp16, float copies of x and of its gradient exist during the call.
///
/// `names`: the layer's, for errors about operations that not all ranks call. Errors: InputError if x has less than two
/// dims or another number of channels than the tensors, or on the CPU if all ranks have less than two values per
/// channel. Error for a backward with create_graph.
///
/// Source: Ioffe and Szegedy 2015, arXiv:1502.03167; over ranks: Peng et al. 2018, arXiv:1711.07240.
at::Tensor sync_batch_norm(const at::Tensor& x, const BatchNormTensors& layer, double momentum, double eps,
                           const comm::Group& ranks, const StatisticsNames& names = {});

/// A layer of batch normalisation over the ranks of a group, for models of your own. In evaluation it equals BatchNorm
/// and does not communicate.
///
///   auto norm = SyncBatchNorm(torch::nn::BatchNormOptions(64), world.group());
///
/// Its parameters and buffers have the names of torch::nn::BatchNorm1d to 3d, so checkpoints fit either. Inputs have
/// two dims or more. Construction is collective: it makes another group of the same ranks, which a clone() shares.
class SyncBatchNormImpl : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const comm::Group& ranks);

  /// Sets the layer's name in errors ("layer features.1"). The default is "SyncBatchNorm 3 (64 features)", numbered by
  /// construction.
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

/// Names each SyncBatchNorm by its path in the model ("layer features.1"). An engine and DataParallel call it.
void name_norms(torch::nn::Module& model);

/// Makes a group of the same ranks that is used for statistics alone. Collective.
comm::Group statistics_group(const comm::Group& ranks);

} // namespace trireme::parallel
