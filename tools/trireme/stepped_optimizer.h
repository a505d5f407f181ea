#pragma once

#include <trireme/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace trireme::tools {

/// An optimizer as `trireme bench` steps it.
struct SteppedRule {
  const char* name;
  optim::Rule rule;
  /// Gradient and copy out in bf16, norm and clip.
  bool mixed;
  optim::StateType state_type;
  /// Bytes of memory traffic per parameter.
  double bytes;
};

/// The rows of `bench optim` (bench_optim.h).
std::span<const SteppedRule> stepped_rules();

/// One optimizer and the arrays that it steps, all on one device.
class SteppedOptimizer {
 public:
  /// Returns an uninitialised array.
  using Make = std::function<at::Tensor(int64_t numel, at::ScalarType type)>;
  SteppedOptimizer(const SteppedRule& rule, int64_t n, const Make& make);
  SteppedOptimizer(const SteppedOptimizer&) = delete;
  SteppedOptimizer& operator=(const SteppedOptimizer&) = delete;

  /// One step of all parameters. On a device it does not wait: the norm stays there.
  void step();

 private:
  const SteppedRule& rule_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::ShardStep shard_;
  std::vector<optim::Segment> segments_;
  at::Tensor norms_;
  at::Tensor sum_; // of squares, on a device
};

} // namespace trireme::tools
