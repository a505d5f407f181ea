#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme::bucket {

/// What the gradient of a step leaves as it is of Adam's and LAMB's two moments.
struct HeldMoments {
  /// The first moment is that of this step already: somebody else has moved it.
  bool first = false;
  /// The second moment stays.
  bool second = false;
  /// Steps that the second moment remembers, for its bias correction; absent: all.
  std::optional<int64_t> second_steps;
};

/// What an optimizer steps of a list of flat buffers, for those who have a say in it (parallel::GradientSync): exact
/// values and states, a bucket at a time, and what the present step is made of.
class SteppedValues {
 public:
  struct Values {
    /// [n], the elements of the bucket that this rank steps: fp32 masters where the parameters have some, else the
    /// parameters.
    at::Tensor parameters;
    /// [n] each. 8-bit states come as fp32 and are encoded again.
    std::vector<at::Tensor> states;
    /// What each state was before the first step.
    std::vector<double> initial;
  };
  /// What f of with_values() does. read: it reads the parameters; read_all: the states too. write: it changes the
  /// parameters, and those of low precision then follow their masters. write_states: it changes the states, and reads
  /// the parameters. write_all: it changes both.
  enum class Access { read, read_all, write, write_states, write_all };

  virtual ~SteppedValues() = default;
  /// Calls f with the values of a bucket of buffer number `buffer`.
  virtual void with_values(int64_t buffer, int64_t bucket, Access access,
                           const std::function<void(const Values&)>& f) = 0;
  /// Whether this rank steps only its part of each bucket (ZeRO).
  virtual bool sharded() const = 0;
  /// Whether a step needs all gradients before the first bucket is stepped (LAMB).
  virtual bool needs_norms() const = 0;

  /// The learning rate of the last step; 0 before the first.
  virtual double lr() const = 0;
  /// The same of one parameter, and its weight decay.
  struct Rates {
    double lr = 0;
    double weight_decay = 0;
  };
  virtual Rates rates(int64_t buffer, int64_t parameter) const = 0;
  /// The decay of the first and the second moment in the last step; absent: as the optimizer's options say.
  virtual std::optional<double> beta1() const = 0;
  virtual std::optional<double> beta2() const = 0;
  /// The factor of the gradients in the present step.
  virtual double grad_scale() const = 0;
  /// Whether the present step leaves a parameter out, because no rank has used it.
  virtual bool is_left_out(int64_t buffer, int64_t parameter) const = 0;
  /// Steps that the states remember, for bias correction.
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;

  /// From the next bucket on.
  virtual void hold(const HeldMoments& held) = 0;
  /// The gradient of the present step for a bucket, fp32 [numel of the bucket], in place of the flat buffer's; its
  /// factor is in it already. Forgotten when the bucket has been stepped.
  virtual void give_gradient(int64_t buffer, int64_t bucket, at::Tensor gradient) = 0;
  /// LAMB: |parameter| / |update| of each parameter in the last step, within its limits: [parameters of the buffer],
  /// fp64.
  virtual at::Tensor trust_ratios(int64_t buffer) const = 0;
  /// LAMB, while it holds both moments: the ratios of the present step. Before its first bucket.
  virtual void set_trust_ratios(int64_t buffer, const at::Tensor& ratios) = 0;
};

} // namespace trireme::bucket
