#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme::bucket {

/// Which of Adam's and LAMB's two moments this step's gradient does not change.
struct HeldMoments {
  /// The first moment already has this step's gradient: the caller updated it.
  bool first = false;
  /// The second moment is unchanged.
  bool second = false;
  /// Number of steps in the second moment, for its bias correction; absent: all.
  std::optional<int64_t> second_steps;
};

/// An optimizer's view of a list of flat buffers for a parallel::GradientSync: exact values and states, one bucket at a
/// time, and the factors of the current step.
class SteppedValues {
 public:
  struct Values {
    /// [n], the elements of the bucket that this rank steps: fp32 masters if the parameters have them, else the
    /// parameters.
    at::Tensor parameters;
    /// [n] each. 8-bit states are decoded to fp32 and encoded again.
    std::vector<at::Tensor> states;
    /// The initial value of each state.
    std::vector<double> initial;
  };
  /// How f of with_values() uses the values:
  /// - read: reads the parameters; read_all: also the states.
  /// - write: changes the parameters; those of low precision then follow their masters.
  /// - write_states: changes the states and reads the parameters.
  /// - write_all: changes both.
  enum class Access { read, read_all, write, write_states, write_all };

  virtual ~SteppedValues() = default;
  /// Calls f with the values of a bucket of buffer number `buffer`.
  virtual void with_values(int64_t buffer, int64_t bucket, Access access,
                           const std::function<void(const Values&)>& f) = 0;
  /// Whether this rank steps only its part of each bucket (ZeRO).
  virtual bool sharded() const = 0;
  /// Whether a step needs all gradients before it steps the first bucket (LAMB).
  virtual bool needs_norms() const = 0;

  /// The learning rate of the last step; 0 before the first.
  virtual double lr() const = 0;
  /// The learning rate and weight decay of one parameter.
  struct Rates {
    double lr = 0;
    double weight_decay = 0;
  };
  virtual Rates rates(int64_t buffer, int64_t parameter) const = 0;
  /// The decay of the first and the second moment in the last step; absent: the optimizer's options apply.
  virtual std::optional<double> beta1() const = 0;
  virtual std::optional<double> beta2() const = 0;
  /// The factor of the gradients in the current step.
  virtual double grad_scale() const = 0;
  /// Whether the current step skips a parameter because no rank used it.
  virtual bool is_left_out(int64_t buffer, int64_t parameter) const = 0;
  /// Number of steps in the states, for bias correction.
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;

  /// Sets which moments are held, from the next bucket on.
  virtual void hold(const HeldMoments& held) = 0;
  /// Replaces the flat buffer's gradient of a bucket in the current step: fp32 [numel of the bucket], with its factor
  /// applied. Dropped when the bucket has been stepped.
  virtual void give_gradient(int64_t buffer, int64_t bucket, at::Tensor gradient) = 0;
  /// LAMB: |parameter| / |update| of each parameter in the last step, clamped: [parameters of the buffer], fp64.
  virtual at::Tensor trust_ratios(int64_t buffer) const = 0;
  /// LAMB, while it holds both moments: sets the ratios of the current step. Call it before the first bucket.
  virtual void set_trust_ratios(int64_t buffer, const at::Tensor& ratios) = 0;
};

} // namespace trireme::bucket
