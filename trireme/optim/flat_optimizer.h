#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/bucket/shard_plan.h>
#include <trireme/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::optim {

/// Steps what this rank owns of a set of flat buffers, and owns the optimizer states
/// of exactly that (ZeRO stage 0: everything; 1 and up: its shards).
///
/// States are allocated at the first step, in the layout of that moment.
/// Cost: one pass of the kernel over the owned elements.
class FlatOptimizer {
 public:
  /// `weight_decay[i]` belongs to buffers[i]. The buffers must outlive the optimizer.
  FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, std::vector<double> weight_decay, const OptimizerOptions& options, int rank,
                int size, bool sharded);

  bool sharded() const {
    return sharded_;
  }
  const Optimizer& rule() const {
    return *rule_;
  }
  /// Optimizer steps done so far.
  int64_t steps() const {
    return steps_;
  }
  void set_steps(int64_t steps) {
    steps_ = steps;
  }

  /// Before the buckets of a step: counts it and says with which values it is done.
  void begin_step(double lr, std::optional<Betas> betas, double grad_scale);
  /// Steps the owned part of one bucket; each bucket once between two begin_step().
  void step_bucket(int64_t buffer, int64_t bucket);
  /// Leaves these parameters out of the norm: copies of others that are counted elsewhere.
  void leave_out_of_norm(const std::function<bool(const std::string& name)>& left_out);
  /// Sum of squares of this rank's share of the gradients, in double, bucket after bucket: summed over the ranks it is that of all.
  /// The share is a shard's also where nothing is sharded, so that every stage adds in the same order.
  double squared_grad_norm() const;

  /// Calls `visit(state name, tensor name, tensor sizes, begin, values)` for each piece of
  /// state on this rank: `values` are elements [begin, begin + n) of the tensor's
  /// row-major order, viewed, so that a loader may write into them.
  using Visit = std::function<void(const std::string&, const bucket::TensorInfo&, int64_t begin, const at::Tensor& values)>;
  void for_each_state(const Visit& visit);

 private:
  struct Shard {
    bucket::FlatParameters* buffer;
    double weight_decay;
    bucket::ShardPlan plan;
    std::vector<at::Tensor> states; // each [plan.state_numel()]
    std::vector<std::vector<Segment>> segments; // of each bucket's owned range
    std::vector<int64_t> uncounted; // tensors left out of the norm
  };

  void allocate_states();
  bool states_allocated() const {
    return shards_.empty() || !shards_.front().segments.empty();
  }
  static std::vector<bucket::Slot> uncounted_slots(const Shard& shard);

  std::vector<Shard> shards_;
  std::unique_ptr<Optimizer> rule_;
  int rank_;
  int size_;
  bool sharded_;
  int64_t steps_ = 0;
  double lr_ = 0;
  std::optional<Betas> betas_;
  double grad_scale_ = 1;
};

} // namespace trireme::optim
