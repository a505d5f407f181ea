#pragma once

#include <trireme/engine/parts.h>

#include <cstdint>
#include <vector>

namespace trireme::engine {

/// Finds the parameters that no rank used in a step, which are then not stepped, as PyTorch skips parameters without a
/// gradient. Ranks first count those of them that lack gradients; only if every rank lacks some, they exchange which.
class UnusedParameters {
 public:
  using Flags = std::vector<std::vector<bool>>; // by buffer and parameter

  /// Records which parameters this rank has used. If buckets may be stepped in backward, none is left out: a bucket is
  /// then stepped without knowing about other ranks.
  explicit UnusedParameters(const Parts& parts);

  bool lacks_some() const { return lacks_some_; }
  /// Whether this rank needs the count. Reduce groups differ in what they lack.
  bool asks() const {
    return !parts_.stepper.may_step_in_backward && (lacks_some_ || parts_.agreement.several_reduce_groups);
  }
  /// Returns the parameters to leave out; empty: none. Collective if enough ranks lack some, unless no rank asks.
  Flags everywhere(double ranks_that_lack_some) const;

 private:
  const Parts& parts_;
  Flags unused_; // on this rank
  bool lacks_some_ = false;
};

} // namespace trireme::engine
