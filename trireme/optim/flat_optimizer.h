#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/bucket/shard_plan.h>
#include <trireme/bucket/state_store.h>
#include <trireme/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

/// What a checkpoint calls the fp32 masters of low-precision parameters.
inline constexpr const char* kMasterState = "master";

/// What may differ between parameters.
struct ParameterOptions {
  double weight_decay = 0;
  /// Times the lr of the step.
  double lr_factor = 1;
  bool operator==(const ParameterOptions&) const = default;
};

/// Steps what this rank owns of a set of flat buffers, and owns the optimizer states
/// of exactly that (ZeRO stage 0: everything; 1 and up: its part of FlatParameters::plan()).
///
/// Buffers of bf16 or fp16 parameters have fp32 masters here, in the same shards: a step updates the master and writes the
/// parameter from it, in one pass. Gradients may be fp32, bf16 or fp16, whatever the parameters are.
/// Masters and states are where the bucket::StateStore keeps them; a bucket's are acquired while it is stepped. Masters follow parameters that are changed before the first step; later, see
/// refresh_masters().
/// Cost: one pass of the kernel over the owned elements; LAMB: two, with one all-reduce between them.
class FlatOptimizer {
 public:
  /// `options_of` is asked once for each parameter; neighbours for which it says the same are stepped in one pass. The buffers must outlive
  /// the optimizer. Without a `store` masters and states are in memory, beside the parameters.
  using OptionsOf = std::function<ParameterOptions(const bucket::TensorInfo&)>;
  FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, const OptionsOf& options_of, const OptimizerOptions& options, bool sharded = false,
                std::unique_ptr<bucket::StateStore> store = nullptr);

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
  /// After begin_step(): this step leaves parameter i of `buffer` and its states as they are where unused[i]; the same on every rank.
  void leave_out(int64_t buffer, std::vector<bool> unused);
  /// True: all gradients must be final before the first step_bucket(), because parameters' norms are needed (LAMB).
  bool needs_norms() const {
    return rule_->needs_norms();
  }
  /// Where needs_norms(), after begin_step() and before the first step_bucket(), when all gradients are final: updates the states,
  /// and adds up every parameter's norms over the ranks with one call of sum_over() for each reduce group. Else it does nothing.
  void prepare();
  /// Says how float64 sums [n] are added up over the ranks that shards are spread over. Needed where needs_norms() and sharded().
  void sum_over(std::function<void(at::Tensor& sums, int reduce_group)> all_reduce) {
    sum_over_ = std::move(all_reduce);
  }
  /// Steps the owned part of one bucket; each bucket once between two begin_step().
  void step_bucket(int64_t buffer, int64_t bucket);
  /// Sum of squares of this rank's share of the gradients that count (bucket::Placement), in double, bucket after bucket: summed over the ranks it is that of all.
  /// The share is a shard's also where nothing is sharded, so that every stage adds in the same order.
  /// Finite if and only if all these gradients are.
  double squared_grad_norm() const;

  /// Takes masters from the parameters again where these are not what the masters round to: after somebody has changed them.
  void refresh_masters();
  /// Bytes of masters and states of this rank.
  int64_t bytes() const {
    return bytes_;
  }

  /// Calls `visit(state name, tensor name, tensor sizes, begin, values)` for each piece of
  /// state on this rank: `values` are elements [begin, begin + n) of the tensor's row-major order, and a loader may write into them.
  /// Masters come as "master", fp32. fp32 and bf16 states are viewed in their type. 8-bit states come as fp32, whatever blocks they
  /// lie in, and are encoded again afterwards: unchanged values give unchanged codes, so saving and resuming in the same shards is
  /// exact; in other shards, blocks are cut anew.
  using Visit = std::function<void(const std::string&, const bucket::TensorInfo&, int64_t begin, const at::Tensor& values)>;
  void for_each_state(const Visit& visit);

 private:
  struct Shard {
    int64_t index; // of the buffer
    bucket::FlatParameters* buffer;
    std::vector<ParameterOptions> options; // of each parameter
    bool has_master; // the parameters are not fp32
    std::vector<std::vector<Segment>> segments; // of each bucket's owned range
    std::vector<std::vector<int64_t>> first_block; // of 8-bit states, of each bucket's segments: each begins a block
    std::vector<bool> unused; // parameters that this step leaves out; empty: none
    std::vector<bucket::Slot> uncounted; // in the norm, in buffer order
    int64_t first_norm; // in norms_
  };

  // What the store has of a bucket's owned range.
  struct BucketStates {
    at::Tensor master; // undefined: the parameters are fp32
    std::span<const at::Tensor> states;
    std::span<const at::Tensor> scales; // of 8-bit states
  };

  /// What is stepped here of a bucket.
  bucket::Range owned(const Shard& shard, int64_t bucket) const;
  void cut(Shard& shard) const;
  void keep(const Shard& shard);
  bool keeps_something(const Shard& shard) const {
    return shard.has_master || !rule_->states().empty();
  }
  void with_states(const Shard& shard, int64_t bucket, const std::function<void(const BucketStates&)>& f) const;
  void follow_first_values();
  /// Calls f(step) for the parts of a bucket's owned range that are stepped in one go.
  void for_each_step(Shard& shard, int64_t bucket, const std::function<void(ShardStep&)>& f) const;
  ShardStep shard_step(const Shard& shard, const at::Tensor& owned_data, const BucketStates& states, int64_t bucket, size_t first, size_t last) const;
  void prefetch_after(const Shard& shard, int64_t bucket) const;
  static at::Tensor scales_of(const Shard& shard, const BucketStates& states, size_t state, int64_t bucket, size_t segment);
  std::span<double> norms_of(const Shard& shard);

  std::vector<Shard> shards_;
  std::unique_ptr<Optimizer> rule_;
  std::unique_ptr<bucket::StateStore> store_;
  int64_t bytes_ = 0;
  bool sharded_;
  int64_t steps_ = 0;
  double lr_ = 0;
  std::optional<Betas> betas_;
  double grad_scale_ = 1;
  std::function<void(at::Tensor&, int)> sum_over_;
  std::vector<double> norms_; // of every tensor of every buffer, as ShardStep::norms
  bool prepared_ = false;
};

} // namespace trireme::optim
