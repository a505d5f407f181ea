#pragma once

#include <trireme/optim/host_step.h>
#include <trireme/optim/optimizer.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/shard_plan.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/shards/bucket/stepped_values.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

/// Name in a checkpoint for the fp32 masters of low-precision parameters.
inline constexpr const char* kMasterState = "master";

/// Options that may differ between parameters.
struct ParameterOptions {
  double weight_decay = 0;
  /// Multiplies the lr of the step.
  double lr_factor = 1;
  /// Its group, if that may get another lr_factor later: set_lr_factors().
  int group = -1;
  bool operator==(const ParameterOptions&) const = default;
};

/// Steps this rank's part of a set of flat buffers, and owns the optimizer states
/// of that part (ZeRO stage 0: everything; 1 and up: its part of FlatParameters::plan()).
///
/// Buffers of bf16 or fp16 parameters have fp32 masters here, in the same shards: a step updates the master and writes
/// the parameter from it, in one pass. Gradients may be fp32, bf16 or fp16, whatever the parameters are. The
/// bucket::StateStore keeps masters and states; those of a bucket are acquired while it is stepped, one chunk after the
/// other if its store cuts it (shards/bucket/chunks.h). Where it has them
/// on the host of a device, the CPU's kernels step the bucket there (HostStep), from send_gradient() on; fp32
/// parameters then have a copy there, as if they had masters. Bits are those of the CPU's kernels. A shard of
/// parameters on the host whose states are on the device comes there to be stepped, and returns. Masters follow changes
/// of parameters before the first step; later, see refresh_masters(). Cost: one pass of the kernel over the owned
/// elements; LAMB: two, with one all-reduce between them.
class FlatOptimizer : public bucket::SteppedValues {
 public:
  /// Calls `options_of` once for each parameter; neighbours with the same options are stepped in one pass. The buffers
  /// must outlive the optimizer. Without a `store` masters and states are in memory, on the parameters' device.
  using OptionsOf = std::function<ParameterOptions(const bucket::TensorInfo&)>;
  FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, const OptionsOf& options_of,
                const OptimizerOptions& options, bool sharded = false,
                std::unique_ptr<bucket::StateStore> store = nullptr, const HostStepOptions& host = {});

  bool sharded() const override {
    return sharded_;
  }
  const Optimizer& rule() const {
    return *rule_;
  }
  /// Optimizer steps done so far.
  int64_t steps() const override {
    return steps_;
  }
  void set_steps(int64_t steps) override {
    steps_ = steps;
  }
  double lr() const override {
    return lr_;
  }
  void with_values(int64_t buffer, int64_t bucket, Access access, const std::function<void(const Values&)>& f) override;

  /// Starts a step with these values and counts it; call it before step_bucket().
  /// The last two: ShardStep's.
  void begin_step(double lr, std::optional<Betas> betas, double grad_scale, at::Tensor device_grad_scale = {});
  /// Gives the parameters of ParameterOptions::group g lr_factor `of_group[g]`, before begin_step(). Returns whether
  /// one had another. Empty: nothing changes.
  bool set_lr_factors(std::span<const double> of_group);
  /// The step that has begun turned out to change nothing, because its factor was NaN: it does not count.
  void cancel_step() {
    --steps_;
  }
  void hold(const bucket::HeldMoments& held) override {
    held_ = held;
  }
  void give_gradient(int64_t buffer, int64_t bucket, at::Tensor gradient) override;
  at::Tensor trust_ratios(int64_t buffer) const override;
  void set_trust_ratios(int64_t buffer, const at::Tensor& ratios) override;
  Rates rates(int64_t buffer, int64_t parameter) const override {
    const ParameterOptions& options = shards_[buffer].options[parameter];
    return {lr_ * options.lr_factor, options.weight_decay};
  }
  double grad_scale() const override {
    return grad_scale_;
  }
  std::optional<double> beta1() const override {
    return betas_ ? std::optional(betas_->beta1) : std::nullopt;
  }
  std::optional<double> beta2() const override {
    return betas_ ? std::optional(betas_->beta2) : std::nullopt;
  }
  /// Skips parameter i of `buffer` and its states in this step if unused[i]. Call it after begin_step(), the same on
  /// every rank.
  void leave_out(int64_t buffer, std::vector<bool> unused);
  bool is_left_out(int64_t buffer, int64_t parameter) const override {
    return is_left_out(shards_[buffer], parameter);
  }
  /// Steps only these rows ([n], int64, ascending, on the parameter's device) of parameter i of `buffer` in this step;
  /// the other rows and their states stay as they are. Call it after begin_step(). Cost: the rows are copied together,
  /// stepped in one pass, and copied back. Not where something is sharded, with needs_norms(), or with 8-bit states:
  /// Error.
  void step_rows(int64_t buffer, int64_t parameter, at::Tensor rows);
  /// True: all gradients must be final before the first step_bucket(), because the step needs parameters' norms (LAMB).
  bool needs_norms() const override {
    return rule_->needs_norms();
  }
  /// With needs_norms(), unless set_trust_ratios() has said what follows from it: updates the states and sums every
  /// parameter's norms over the ranks with one all-reduce for each reduce group. Call it after begin_step(), when all
  /// gradients are final, and before the first step_bucket(). Else it does nothing.
  void prepare();
  /// Sets the all-reduce of float64 sums [n] over the ranks of the shards. Required with needs_norms() and sharded().
  void sum_over(std::function<void(at::Tensor& sums, int reduce_group)> all_reduce) {
    sum_over_ = std::move(all_reduce);
  }
  /// Steps the owned part of one bucket. Call it once for each bucket after begin_step(). On the host it blocks until
  /// the bucket's gradients are there, for nothing else.
  void step_bucket(int64_t buffer, int64_t bucket);

  /// Whether any bucket is stepped on the host of a device.
  bool steps_on_host() const {
    return host_ != nullptr;
  }
  /// The bucket's gradients are final: starts to bring what is stepped on the host there, unless that was done. From
  /// step_bucket() on it comes by itself.
  void send_gradient(int64_t buffer, int64_t bucket);
  /// With HostStepOptions::delayed, after step_bucket() of all buckets: a thread steps them while this one goes on.
  /// Until finish_bucket() has been called for each of them nothing else may be asked of this optimizer but
  /// send_gradient() and squared_grad_norm().
  void start_delayed();
  bool steps_later() const {
    return host_ && host_->is_delayed();
  }
  bool has_delayed() const {
    return host_ && host_->has_delayed();
  }
  /// Waits for the thread and brings the bucket's new parameters to the device. Errors: what the step threw.
  void finish_bucket(int64_t buffer, int64_t bucket);
  /// Waits for the thread, whatever it comes to: before the end of the buffers.
  void drop_delayed() noexcept;
  /// Sum of squares, in double and in order of buckets, of this rank's shard of the gradients that count
  /// (bucket::Placement). The sum over the ranks is that of all gradients. Uses shards even if nothing is sharded, so
  /// that every stage adds in the same order. Finite if and only if all these gradients are. [1], fp64, on the
  /// parameters' device, which it does not wait for.
  at::Tensor squared_grad_norm() const;
  /// The same for gradients that every rank has for itself: of all of them, with each buffer's sum multiplied by
  /// factor(buffer).
  at::Tensor own_squared_grad_norm(const std::function<double(const bucket::FlatParameters&)>& factor) const;

  /// Copies changed parameters into their masters: those that differ from their rounded master, and all that are
  /// masters because they are on the host.
  void refresh_masters();
  /// Bytes of masters and states of this rank.
  int64_t bytes() const {
    return bytes_;
  }

  /// Calls `visit(state name, tensor name, tensor sizes, begin, values)` for each piece of
  /// state on this rank: `values` are elements [begin, begin + n) of the tensor's row-major order. With `modifies` it
  /// may write into them. Masters come as "master", fp32. fp32 and bf16 states are viewed in their type. 8-bit states
  /// come as fp32, whatever blocks they lie in, and are encoded again afterwards: unchanged values give unchanged
  /// codes, so saving and resuming in the same shards is exact; in other shards, blocks are cut anew.
  using Visit =
      std::function<void(const std::string&, const bucket::TensorInfo&, int64_t begin, const at::Tensor& values)>;
  void for_each_state(const Visit& visit, bool modifies = true);

  /// A piece of state as for_each_state() visits it, without its values.
  struct StateRange {
    std::string state;
    const bucket::TensorInfo* tensor = nullptr;
    int64_t begin = 0;
    int64_t numel = 0;
    /// The type in which it is visited.
    at::ScalarType type = at::kFloat;
  };
  /// A bucket that has states on this rank, or a chunk of one, and its pieces in the order in which they are visited.
  struct StateBucket {
    int64_t buffer = 0;
    /// Its number in the store.
    int64_t bucket = 0;
    std::vector<StateRange> pieces;
  };
  /// All of them. Reads no values.
  std::vector<StateBucket> state_buckets() const;
  /// Calls visit(number, values) for the pieces of one bucket, which have memory for the time of the call.
  /// for_each_state() is this for one bucket after the other.
  void visit_states(int64_t buffer, int64_t bucket,
                    const std::function<void(size_t number, const at::Tensor& values)>& visit, bool modifies);
  /// Says that visit_states() of this bucket is near.
  void prefetch_states(int64_t buffer, int64_t bucket);
  /// Where the values of one piece lie in a file, byte for byte as they are visited (bucket::StateStore::extent).
  std::optional<bucket::Extent> state_extent(int64_t buffer, int64_t bucket, size_t number);

 private:
  // What of a bucket's owned range the store gives at a time.
  struct Chunk {
    int64_t bucket;
    bucket::Range range;              // of the flat buffer
    std::vector<Segment> segments;    // of the range
    std::vector<int64_t> first_block; // of 8-bit states, of each segment: each begins a block
  };
  struct Shard {
    bucket::FlatParameters* buffer;
    std::vector<ParameterOptions> options; // of each parameter
    bool low_precision;                    // the parameters are not fp32, and have masters
    std::vector<Chunk> chunks;             // by their number in the store
    std::vector<int64_t> first_chunk;      // of each bucket, and the end
    std::vector<at::Tensor> gradients;     // given for the present step; undefined: the buffer's
    std::vector<bool> unused;              // parameters that this step leaves out; empty: none
    std::map<int64_t, at::Tensor> rows;    // of parameters of which this step takes only these
    std::vector<bucket::Slot> uncounted;   // in the norm, in buffer order
    int64_t first_norm;                    // in norms_
    at::Tensor norms;                      // its part of norms_
    std::optional<int64_t> in_store;       // its number; absent: it has neither masters nor states
    std::vector<bool> on_host;             // bucket b is stepped on the host of a device
    std::vector<bool> has_master;          // bucket b: low precision, or a copy on the host

    int64_t buckets() const {
      return std::ssize(first_chunk) - 1;
    }
    std::span<const Chunk> chunks_of(int64_t bucket) const {
      return std::span(chunks).subspan(first_chunk[bucket], first_chunk[bucket + 1] - first_chunk[bucket]);
    }
    int64_t number(const Chunk& chunk) const {
      return &chunk - chunks.data();
    }
  };

  // Masters and states of a chunk in the store.
  struct BucketStates {
    at::Tensor master; // undefined: it has none
    std::span<const at::Tensor> states;
    std::span<const at::Tensor> scales; // of 8-bit states
  };

  /// The range of a bucket that this rank steps.
  bucket::Range owned(const Shard& shard, int64_t bucket) const;
  void cut(Shard& shard) const;
  void place(Shard& shard);
  void keep(Shard& shard);
  static bool has_masters(const Shard& shard);
  bool steps_all_on_host() const;
  void prepare_host_steps(const HostStepOptions& options);
  void with_states(const Shard& shard, const Chunk& chunk, bool modifies,
                   const std::function<void(const BucketStates&)>& f) const;
  // The same of all chunks of a bucket together.
  void with_all_states(const Shard& shard, int64_t bucket, bool modifies,
                       const std::function<void(const std::vector<BucketStates>&)>& f) const;
  void follow_first_values();
  void refresh_master(const Shard& shard, const Chunk& chunk);
  /// Calls f(step) for each part of a bucket's owned range that is stepped in one pass, beside the states: with
  /// parameters that it `modifies`, or only reads.
  void for_each_step(const Shard& shard, int64_t bucket, bool modifies, const std::function<void(ShardStep&)>& f) const;
  // The same of a chunk whose new parameters go to `data`, beside the masters; undefined: nowhere.
  void step_parts(const Shard& shard, const Chunk& chunk, const at::Tensor& data, const BucketStates& states,
                  const std::function<void(ShardStep&)>& f) const;
  // The same of each chunk of a bucket; `data` is the bucket's.
  void step_chunks(const Shard& shard, int64_t bucket, const at::Tensor& data,
                   const std::function<void(ShardStep&)>& f) const;
  void step(Shard& shard, ShardStep& step) const;
  void step_on_host(Shard& shard, int64_t bucket);
  void write_stepped(Shard& shard, int64_t bucket, const at::Tensor& parameters);
  void fill_unstepped(const Shard& shard, const Chunk& chunk, const at::Tensor& master,
                      const at::Tensor& parameters) const;
  bool is_left_out(const Shard& shard, int64_t parameter) const {
    return !shard.unused.empty() && shard.unused[parameter];
  }
  /// The chunk's part of `data`, which is that of its bucket; undefined as it is.
  at::Tensor part_of(const Shard& shard, const Chunk& chunk, const at::Tensor& data) const;
  ShardStep shard_step(const Shard& shard, const Chunk& chunk, const at::Tensor& data, const BucketStates& states,
                       size_t first, size_t last) const;
  static void step_rows_of(const ShardStep& whole, const at::Tensor& rows, int64_t row_numel,
                           const std::function<void(ShardStep&)>& f);
  void prefetch_after(const Shard& shard, const Chunk& chunk) const;
  static std::vector<bucket::Range> counted(const Shard& shard, const bucket::Range& range);
  static void add_squared_norm_of(const Shard& shard, int64_t bucket, const bucket::Range& range,
                                  const at::Tensor& sum);
  static at::Tensor scales_of(const Chunk& chunk, const BucketStates& states, size_t state, size_t segment);

  std::vector<Shard> shards_;
  std::unique_ptr<Optimizer> rule_;
  std::unique_ptr<bucket::StateStore> store_;
  int64_t bytes_ = 0;
  bool sharded_;
  int64_t steps_ = 0;
  double lr_ = 0;
  std::optional<Betas> betas_;
  bucket::HeldMoments held_;
  double grad_scale_ = 1;
  at::Tensor device_grad_scale_;
  std::function<void(at::Tensor&, int)> sum_over_;
  at::Device device_ = at::kCPU; // of all buffers
  at::Tensor norms_;             // of every tensor of every buffer, as ShardStep::norms
  bool prepared_ = false;
  std::unique_ptr<HostStep> host_; // null: nothing is stepped on the host of a device
};

} // namespace trireme::optim
