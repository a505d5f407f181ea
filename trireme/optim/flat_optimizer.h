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
#include <utility>
#include <vector>

namespace trireme::optim {

/// Name in a checkpoint for the fp32 masters of low-precision parameters.
inline constexpr const char* kMasterState = "master";

/// Options that may differ between parameters.
struct ParameterOptions {
  double weight_decay = 0;
  /// Multiplies the step's lr.
  double lr_factor = 1;
  /// Group whose lr_factor may change later: set_lr_factors(); -1: none.
  int group = -1;
  bool operator==(const ParameterOptions&) const = default;
};

/// Steps this rank's part of a set of flat buffers, and owns that part's optimizer states (ZeRO stage 0: everything; 1
/// and up: its part of FlatParameters::plan()).
///
/// Buffers of bf16 or fp16 parameters have fp32 masters in the same shards: one pass updates the master and writes the
/// parameter from it. Gradients may be fp32, bf16 or fp16 for any type of parameters. Masters follow changes of
/// parameters before the first step; later, see refresh_masters().
///
/// The bucket::StateStore keeps masters and states. A bucket's are acquired while it is stepped, chunk by chunk if the
/// store cuts it (shards/bucket/chunks.h). If the store has them on the host of a device, the CPU's kernels step the
/// bucket there (HostStep), from send_gradient() on, with the CPU's bits. Its fp32 parameters then have a copy on the
/// host, as if they had masters. A shard of parameters on the host whose states are on the device is copied to the
/// device, stepped and copied back.
///
/// Cost: one pass of the kernel over the owned elements; LAMB: two, with one all-reduce between them.
class FlatOptimizer : public bucket::SteppedValues {
 public:
  /// Calls `options_of` once per parameter; neighbours with the same options are stepped in one pass. The buffers must
  /// outlive the optimizer. Without a `store`, masters and states are in memory on the parameters' device.
  using OptionsOf = std::function<ParameterOptions(const bucket::TensorInfo&)>;
  FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, const OptionsOf& options_of,
                const OptimizerOptions& options, bool sharded = false,
                std::unique_ptr<bucket::StateStore> store = nullptr, const HostStepOptions& host = {});

  bool sharded() const override { return sharded_; }
  const Optimizer& rule() const { return *rule_; }
  /// Optimizer steps done so far.
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }
  double lr() const override { return lr_; }
  void with_values(int64_t buffer, int64_t bucket, Access access, const std::function<void(const Values&)>& f) override;

  /// Starts a step with these values and counts it; call it before step_bucket(). For `grad_scale` and
  /// `device_grad_scale` see ShardStep. `device_scalars`: rows as step_scalars() has them, on the device, which replace
  /// `lr`, `betas` and the step's number there. Buckets that are stepped on the host do not read them.
  void begin_step(double lr, std::optional<Betas> betas, double grad_scale, at::Tensor device_grad_scale = {},
                  at::Tensor device_scalars = {});
  /// The numbers of step `step` (of the next: steps() + 1; of the next if the last one did not count: steps()) for each
  /// group of parameters with the same options: [groups, kernels::kStepScalars], int32 words of kernels::StepScalars,
  /// on the host. Uses the factors of set_lr_factors(). Errors: Error with a step below 1.
  at::Tensor step_scalars(double lr, std::optional<Betas> betas, int64_t step) const;
  /// Sets lr_factor of ParameterOptions::group g to `of_group[g]`; call it before begin_step(). Returns whether one
  /// changed. Empty: nothing changes.
  bool set_lr_factors(std::span<const double> of_group);
  /// The step that has begun changed nothing because its factor was NaN: it does not count.
  void cancel_step() { --steps_; }
  void hold(const bucket::HeldMoments& held) override { held_ = held; }
  void give_gradient(int64_t buffer, int64_t bucket, at::Tensor gradient) override;
  at::Tensor trust_ratios(int64_t buffer) const override;
  void set_trust_ratios(int64_t buffer, const at::Tensor& ratios) override;
  Rates rates(int64_t buffer, int64_t parameter) const override {
    const ParameterOptions& options = shards_[buffer].options[parameter];
    return {lr_ * options.lr_factor, options.weight_decay};
  }
  double grad_scale() const override { return grad_scale_; }
  std::optional<double> beta1() const override { return betas_ ? std::optional(betas_->beta1) : std::nullopt; }
  std::optional<double> beta2() const override { return betas_ ? std::optional(betas_->beta2) : std::nullopt; }
  /// Skips parameter i of `buffer` and its states in this step if unused[i]. Call it after begin_step(), with the same
  /// values on every rank.
  void leave_out(int64_t buffer, std::vector<bool> unused);
  bool is_left_out(int64_t buffer, int64_t parameter) const override { return is_left_out(shards_[buffer], parameter); }
  /// Steps only these rows ([n], int64, ascending, on the parameter's device) of parameter i of `buffer` in this step;
  /// the other rows and their states are unchanged. Call it after begin_step(). Cost: the rows are gathered, stepped in
  /// one pass, and copied back. Errors: Error with shards, needs_norms(), states in chunks or 8-bit states.
  void step_rows(int64_t buffer, int64_t parameter, at::Tensor rows);
  /// True: all gradients must be final before the first step_bucket(), because the step needs norms of parameters
  /// (LAMB).
  bool needs_norms() const override { return rule_->needs_norms(); }
  /// With needs_norms(), unless set_trust_ratios() was called: updates the states and sums every parameter's norms over
  /// the ranks, with one all-reduce per reduce group. Call it after begin_step(), when all gradients are final, before
  /// the first step_bucket(). Otherwise it does nothing.
  void prepare();
  /// Sets the all-reduce of float64 sums [n] over the ranks of the shards. Required with needs_norms() and sharded().
  void sum_over(std::function<void(at::Tensor& sums, int reduce_group)> all_reduce) {
    sum_over_ = std::move(all_reduce);
  }
  /// Steps the owned part of one bucket. Call it once per bucket after begin_step(). On the host it waits only for the
  /// bucket's gradients.
  void step_bucket(int64_t buffer, int64_t bucket);

  /// Whether any bucket is stepped on the host of a device.
  bool steps_on_host() const { return host_ != nullptr; }
  /// The bucket's gradients are final: starts to copy those that are stepped on the host, unless that was done.
  /// step_bucket() calls it, too.
  void send_gradient(int64_t buffer, int64_t bucket);
  /// With HostStepOptions::delayed, after step_bucket() of all buckets: a thread steps them while the caller goes on.
  /// Until finish_bucket() was called for each of them, only send_gradient() and squared_grad_norm() may be called.
  void start_delayed();
  bool steps_later() const { return host_ && host_->is_delayed(); }
  bool has_delayed() const { return host_ && host_->has_delayed(); }
  /// Waits for the thread and copies the bucket's new parameters to the device. Errors: what the step threw.
  void finish_bucket(int64_t buffer, int64_t bucket);
  /// Waits for the thread and drops its result and errors. Call it before the buffers are destroyed.
  void drop_delayed() noexcept;
  /// Sum of squares of this rank's shard of the gradients that count (bucket::Placement), in double and in order of
  /// buckets. The sum over the ranks is that of all gradients. It uses shards even if nothing is sharded, so that every
  /// stage adds in the same order. Finite if and only if all these gradients are. [1], fp64, on the parameters' device,
  /// for which it does not wait.
  at::Tensor squared_grad_norm() const;
  /// The sum for gradients that each rank has on its own: over all of them, each buffer's sum multiplied by
  /// factor(buffer).
  at::Tensor own_squared_grad_norm(const std::function<double(const bucket::FlatParameters&)>& factor) const;

  /// Copies changed parameters into their masters: those that differ from their rounded master, and all copies of fp32
  /// parameters on the host.
  void refresh_masters();
  /// Bytes of this rank's masters and states.
  int64_t bytes() const { return bytes_; }

  /// Calls `visit(state name, tensor name, tensor sizes, begin, values)` for each piece of state on this rank: `values`
  /// are elements [begin, begin + n) of the tensor's row-major order. With `modifies` it may change them. Masters are
  /// visited as "master", fp32; fp32 and bf16 states as views of their type. 8-bit states are decoded to fp32, whatever
  /// their blocks, and encoded again afterwards. Unchanged values give unchanged codes, so saving and resuming in the
  /// same shards is exact; in other shards, blocks are cut anew.
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
  /// A bucket with states on this rank, or a chunk of one, and its pieces in the order of visits.
  struct StateBucket {
    int64_t buffer = 0;
    /// Its number in the store.
    int64_t bucket = 0;
    std::vector<StateRange> pieces;
  };
  /// All of them, without reading values.
  std::vector<StateBucket> state_buckets() const;
  /// Calls visit(number, values) for the pieces of one bucket; the values are valid during the call. for_each_state()
  /// does this for one bucket after another.
  void visit_states(int64_t buffer, int64_t bucket,
                    const std::function<void(size_t number, const at::Tensor& values)>& visit, bool modifies);
  /// Prefetches what visit_states() of this bucket needs.
  void prefetch_states(int64_t buffer, int64_t bucket);
  /// The file range of one piece's values, byte for byte as they are visited (bucket::StateStore::extent).
  std::optional<bucket::Extent> state_extent(int64_t buffer, int64_t bucket, size_t number);

 private:
  // The part of a bucket's owned range that the store returns at a time.
  struct Chunk {
    int64_t bucket;
    bucket::Range range;              // of the flat buffer
    std::vector<Segment> segments;    // of the range
    std::vector<int64_t> first_block; // of 8-bit states, per segment: each segment begins a block
  };
  struct Shard {
    bucket::FlatParameters* buffer;
    std::vector<ParameterOptions> options; // per parameter
    std::vector<int64_t> group;            // per parameter, of groups_
    bool low_precision;                    // the parameters are not fp32, and have masters
    std::vector<Chunk> chunks;             // by their number in the store
    std::vector<int64_t> first_chunk;      // per bucket, and the end
    std::vector<at::Tensor> gradients;     // given for the current step; undefined: the buffer's
    std::vector<bool> unused;              // parameters that this step skips; empty: none
    std::map<int64_t, at::Tensor> rows;    // by parameter: this step takes only these rows
    std::vector<bucket::Slot> uncounted;   // not in the norm, in buffer order
    int64_t first_norm;                    // index in norms_
    at::Tensor norms;                      // this shard's part of norms_
    std::optional<int64_t> in_store;       // our buffer number in the store; absent: neither masters nor states
    std::vector<bool> on_host;             // bucket b is stepped on the host of a device
    std::vector<bool> has_master;          // bucket b: low precision, or a copy on the host

    int64_t buckets() const { return std::ssize(first_chunk) - 1; }
    std::span<const Chunk> chunks_of(int64_t bucket) const {
      return std::span(chunks).subspan(first_chunk[bucket], first_chunk[bucket + 1] - first_chunk[bucket]);
    }
    int64_t number(const Chunk& chunk) const { return &chunk - chunks.data(); }
  };

  // Masters and states of a chunk in the store.
  struct BucketStates {
    at::Tensor master; // undefined: there is none
    std::span<const at::Tensor> states;
    std::span<const at::Tensor> scales; // of 8-bit states
  };

  /// The range of a bucket that this rank steps.
  bucket::Range owned(const Shard& shard, int64_t bucket) const;
  std::vector<kernels::StepScalars> rows_at(double lr, std::optional<Betas> betas, int64_t step) const;
  void cut(Shard& shard) const;
  void group(Shard& shard);
  void place(Shard& shard);
  void keep(Shard& shard);
  static bool has_masters(const Shard& shard);
  bool steps_all_on_host() const;
  void prepare_host_steps(const HostStepOptions& options);
  void with_states(const Shard& shard, const Chunk& chunk, bool modifies,
                   const std::function<void(const BucketStates&)>& f) const;
  // Acquires all chunks of a bucket at once.
  void with_all_states(const Shard& shard, int64_t bucket, bool modifies,
                       const std::function<void(const std::vector<BucketStates>&)>& f) const;
  void follow_first_values();
  void refresh_master(const Shard& shard, const Chunk& chunk);
  /// Calls f(step) for each part of a bucket's owned range that is stepped in one pass, with its states and with
  /// parameters that f `modifies` or only reads.
  void for_each_step(const Shard& shard, int64_t bucket, bool modifies, const std::function<void(ShardStep&)>& f) const;
  // Calls f for the parts of a chunk. New parameters are written to `data`, besides the masters; undefined: to the
  // masters only.
  void step_parts(const Shard& shard, const Chunk& chunk, const at::Tensor& data, const BucketStates& states,
                  const std::function<void(ShardStep&)>& f) const;
  // Calls f for the parts of each chunk of a bucket; `data` is the bucket's.
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
  /// The chunk's part of its bucket's `data`; undefined if `data` is.
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
  at::Tensor device_scalars_;                       // [groups, kernels::kStepScalars]; undefined: by value
  std::vector<std::pair<int64_t, int64_t>> groups_; // a buffer and parameter of each group with the same options
  std::function<void(at::Tensor&, int)> sum_over_;
  at::Device device_ = at::kCPU; // of all buffers
  at::Tensor norms_;             // for every tensor of every buffer, as ShardStep::norms
  bool prepared_ = false;
  std::unique_ptr<HostStep> host_; // null: nothing is stepped on the host of a device
};

} // namespace trireme::optim
