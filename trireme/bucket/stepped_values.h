#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::bucket {

/// What an optimizer steps of a list of flat buffers, for those who change it between two steps: exact values and states, a bucket at a time.
class SteppedValues {
 public:
  struct Values {
    /// [n], the elements of the bucket that this rank steps: fp32 masters where the parameters have some, else the parameters.
    at::Tensor parameters;
    /// [n] each. 8-bit states come as fp32 and are encoded again.
    std::vector<at::Tensor> states;
    /// What each state was before the first step.
    std::vector<double> initial;
  };
  /// read: parameters, to be read. write: to be changed; low-precision parameters then follow their masters. write_states: states too.
  enum class Access { read, write, write_states };

  virtual ~SteppedValues() = default;
  /// Calls f with the values of a bucket of buffer number `buffer`.
  virtual void with_values(int64_t buffer, int64_t bucket, Access access, const std::function<void(const Values&)>& f) = 0;
  /// The learning rate of the last step; 0 before the first.
  virtual double lr() const = 0;
  /// Steps that the states remember, for bias correction.
  virtual void set_steps(int64_t steps) = 0;
};

} // namespace trireme::bucket
