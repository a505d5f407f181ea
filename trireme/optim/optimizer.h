#pragma once

#include <trireme/optim/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

/// A run of elements that belong to one parameter, relative to the shard's start.
/// Optimizers with per-parameter norms (LAMB) need it; element-wise ones do not.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t parameter = 0;
};

/// Adam's decay rates of the moments.
struct Betas {
  double beta1 = 0.9;
  double beta2 = 0.999;
};

/// What one rank steps of one flat buffer, and with which values.
///
/// Shapes: param, grad and each state are [n], contiguous, fp32.
struct ShardStep {
  at::Tensor param;
  at::Tensor grad;
  /// In the order of Optimizer::state_names().
  std::vector<at::Tensor> states;
  std::span<const Segment> segments;
  double lr = 0;
  double weight_decay = 0;
  /// Multiplied into each gradient as it is read: unscaling and clipping cost no pass of their own.
  double grad_scale = 1;
  /// 1 for the first step; bias correction needs it.
  int64_t step = 1;
  /// Instead of the optimizer's own, as Schedule::betas_at() gives them for OneCycle. Adam only.
  std::optional<Betas> betas;
};

/// Updates shards in one pass over memory, on all threads of at::parallel_for.
/// Holds hyper-parameters only; the states belong to whoever owns the shards.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual const char* name() const = 0;
  /// "exp_avg", "exp_avg_sq": what a checkpoint calls them.
  virtual const std::vector<std::string>& state_names() const = 0;
  /// Updates param and states in place. The same bits for any number of threads and any SIMD width.
  /// Cost: Adam reads 4 and writes 3 arrays once (28 bytes an element). Allocates nothing.
  /// Errors: Error naming the tensor whose shape, type, layout or device is wrong; nothing is changed then.
  virtual void step(const ShardStep& shard) const = 0;
};

/// Makes the optimizer that `options.kind` names. lr and weight_decay come with each ShardStep.
/// Errors: InputError naming the option that has an impossible value.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);

/// Sums the squares of `grad` ([n], fp32, contiguous) in double, the same bits for any number of threads.
/// Cost: reads the array once. inf or nan anywhere gives inf or nan.
double squared_norm(const at::Tensor& grad);

} // namespace trireme::optim
