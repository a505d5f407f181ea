#pragma once

#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/states.h>
#include <trireme/shards/bucket/stepped_values.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

using kernels::Segment;

/// Adam's decay rates of the moments.
struct Betas {
  double beta1 = 0.9;
  double beta2 = 0.999;
};

/// What the numbers of a step follow from, for parameters with the same options.
struct StepValues {
  double lr = 0;
  double weight_decay = 0;
  /// 1 for the first step. Bias correction uses it. It also seeds the stochastic rounding of bf16 and 8-bit states,
  /// with new random bits in each step. Rounding to nearest would drop changes below half a unit in the last place
  /// (kernels/optimizer_args.h).
  int64_t step = 1;
  /// Overrides the optimizer's betas (Adam, LAMB and Lion): Schedule::betas_at() gives them for OneCycle.
  std::optional<Betas> betas;
  /// Adam and LAMB: the moments that the gradient does not change. LAMB holds both or none; while it holds them,
  /// `norms` give the trust ratio to use.
  bucket::HeldMoments held;
};

/// The part of a flat buffer that one rank steps, and the values of the step.
///
/// Shapes: all [n], contiguous, on one device.
struct ShardStep : StepValues {
  /// fp32: the parameters, or their masters.
  at::Tensor param;
  /// fp32, bf16 or fp16.
  at::Tensor grad;
  /// Copy of the new parameters, bf16 or fp16, rounded to nearest even. May be undefined.
  at::Tensor param_copy;
  /// In the order of Optimizer::states() and of type Optimizer::state_type(): fp32, bf16, or uint8 codes.
  std::vector<at::Tensor> states;
  /// With 8-bit states: the blocks' scales, fp32, per state, [sum of ceil(elements / kStateBlock) of the segments,
  /// those that are not stepped included]; else empty.
  std::vector<at::Tensor> scales;
  /// What is stepped, relative to the arrays: parameters where norms or 8-bit blocks are needed, else neighbours with
  /// the same numbers. Without rows and norms all elements are stepped.
  std::span<const Segment> segments;
  /// The numbers of the segments by Segment::row. Empty: those of StepValues.
  std::span<const kernels::StepScalars> rows;
  /// With needs_norms(): for each Segment::parameter p the sums of squares over all ranks, of its weights at 2p and of
  /// its update at 2p + 1. fp64, on the shard's device.
  at::Tensor norms;
  /// Multiplies each gradient as it is read, so unscaling and clipping need no extra pass.
  double grad_scale = 1;
  /// Replaces grad_scale if only the device knows the factor: one element, fp32, on the shard's device. NaN: the step
  /// changes nothing. May be undefined.
  at::Tensor device_grad_scale;
  /// Replaces `rows` on a device: [rows, kernels::kStepScalars], int32 words. May be undefined.
  at::Tensor step_scalars;
};

/// Updates shards in one pass over memory, on all threads of at::parallel_for. Holds hyper-parameters only; the owner
/// of the shards owns the states.
class Optimizer {
 public:
  explicit Optimizer(StateType state_type) : state_type_(state_type) {}
  virtual ~Optimizer() = default;
  virtual const char* name() const = 0;
  virtual const std::vector<StateInfo>& states() const = 0;
  /// The numbers of a step, computed in double and rounded once. Errors: Error with a step below 1.
  kernels::StepScalars scalars(const StepValues& values) const;
  /// Updates param, states and param_copy in place. The bits do not depend on the number of threads, the SIMD width, or
  /// how a buffer is cut into shards (8-bit states: cut at multiples of kStateBlock; LAMB: up to rounding of the norms,
  /// in double). Cost: Adam in fp32 reads 4 and writes 3 arrays once, 28 bytes per element; kernels/optimizer_args.h
  /// has the others. Allocates nothing. Errors: Error naming the tensor whose shape, type, layout or device is wrong,
  /// before anything is changed.
  virtual void step(const ShardStep& shard) const = 0;

  /// True: a step has two phases: prepare() for all shards, then step() with `sums` reduced over all ranks as its
  /// norms.
  virtual bool needs_norms() const { return false; }
  /// Updates the states and adds this shard's part to `sums`, shaped as ShardStep::norms. Errors: as step().
  virtual void prepare(const ShardStep& shard, const at::Tensor& sums) const;
  /// With needs_norms(): the trust ratios for `norms`, shaped as ShardStep::norms [2 n]: [n], fp64, on their device.
  virtual at::Tensor trust_ratios(const at::Tensor& norms) const;

  StateType state_type() const { return state_type_; }

 protected:
  /// Sets those that the rule has, but for the seed.
  virtual void set_scalars(kernels::StepScalars& row, const StepValues& values) const = 0;

 private:
  StateType state_type_;
};

/// The type of the arrays that hold states of this type.
at::ScalarType scalar_type(StateType type);

/// Makes the optimizer that `options.rule` selects. Each ShardStep brings its lr and weight_decay.
/// Errors: InputError naming the option that has an impossible value.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);

/// Adds the sum of squares of `grad` ([n], fp32, bf16 or fp16, contiguous), computed in double, to `sum` ([1], fp64, on
/// the same device). The bits do not depend on the number of threads. Finite if and only if every element is: the
/// overflow check of mixed precision. Cost: reads the array once; does not wait for the device.
void add_squared_norm(const at::Tensor& grad, const at::Tensor& sum);
/// Returns this sum as a number; waits for the device.
double squared_norm(const at::Tensor& grad);

/// Converts 8-bit states ([n] codes with their scales) to fp32 and back. Writing unchanged values back gives the same
/// codes.
at::Tensor decode_states(const at::Tensor& codes, const at::Tensor& scales, bool is_signed);
void encode_states(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);

} // namespace trireme::optim
