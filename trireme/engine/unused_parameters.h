#pragma once

#include <trireme/engine/parts.h>

#include <cstdint>
#include <vector>

namespace trireme::engine {

/// Finds the parameters that no rank has used in a step, which leaves them as they are, as PyTorch does with parameters
/// without a gradient. Only when every rank lacks a gradient it can be the same one, so the ranks first count those
/// that lack some, and exchange which ones in such steps only.
class UnusedParameters {
 public:
  using Flags = std::vector<std::vector<bool>>; // by buffer and parameter

  /// Looks at what this rank has used. A step whose buckets may be stepped in backward leaves nothing out: a bucket is
  /// stepped without knowing about other ranks.
  explicit UnusedParameters(const Parts& parts);

  bool lacks_some() const {
    return lacks_some_;
  }
  /// Whether this rank needs to know how many ranks lack some. One reduce group may lack what another has.
  bool asks() const {
    return !parts_.stepper.may_step_in_backward && (lacks_some_ || parts_.agreement.several_reduce_groups);
  }
  /// Returns those to leave out; empty: none. Collective where enough ranks lack some, unless no rank asks.
  Flags everywhere(double ranks_that_lack_some) const;

 private:
  const Parts& parts_;
  Flags unused_; // on this rank
  bool lacks_some_ = false;
};

} // namespace trireme::engine
