#pragma once

#include <trireme/optim/parameters_to_device.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/shard_plan.h>
#include <trireme/shards/bucket/state_store.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::optim {

/// How a FlatOptimizer steps buckets that its store keeps on the host of a device (bucket::StateStore::on_host()).
struct HostStepOptions {
  /// Pins the memory of parameters that are copied back, and of gradients without a store of their own.
  bool pinned = true;
  /// Keeps the gradients of buckets that are stepped on the host; null: one tensor in host memory per buffer.
  std::shared_ptr<bucket::StateStore> gradients = nullptr;
  /// Sums sharded gradients over micro-batches on the host. False if ranks with the same shard exchange them before the
  /// step.
  bool add_up_there = true;
  /// A step begins when its gradients have arrived, and finish_bucket() copies its parameters to the device. The host
  /// steps while the device computes the next gradients with the previous parameters. Source: Ren et al. 2021,
  /// arXiv:2101.06840, section 5.2 (delayed parameter update).
  bool delayed = false;
};

/// Steps buckets of a device on its host. Copies their gradients to pinned memory, and their new parameters back on a
/// separate stream while the next bucket is stepped. It steps at once, or on a thread while the device goes on
/// (delayed).
///
/// Independent of the optimizer: `write_stepped` steps. Host memory: the gradients, twice if delayed, and the new
/// parameters of 3 buckets, or of all if delayed.
class HostStep {
 public:
  struct Buffer {
    bucket::FlatParameters* parameters = nullptr;
    /// For each bucket, the elements of the flat buffer that are stepped on the host; empty: none.
    std::vector<bucket::Range> ranges;
    /// For each bucket, the parts of this rank's shard that count in the norm of gradients.
    std::vector<std::vector<bucket::Range>> counted;
  };
  /// Steps a bucket and writes its new parameters to `to` ([numel of its range], of their type, on the host).
  using WriteStepped = std::function<void(int64_t buffer, int64_t bucket, const at::Tensor& to)>;

  HostStep(at::Device device, const HostStepOptions& options, std::vector<Buffer> buffers, WriteStepped write_stepped);

  bool is_delayed() const { return options_.delayed; }
  /// Steps a bucket and copies its new parameters to `data`, on the device.
  void step(int64_t buffer, int64_t bucket, const at::Tensor& data);
  /// Elements `range` of the current step's gradients; waits until they have arrived.
  at::Tensor gradient(int64_t buffer, int64_t bucket, const bucket::Range& range) const;
  /// Adds the squares of the bucket's gradients, as they were when they were sent, to `sum` ([1], fp64, on the device).
  /// False: they stay on the device until send_gradient(), and nothing is added.
  bool add_left_norm(int64_t buffer, int64_t bucket, const at::Tensor& sum) const;

  /// Delayed: adds this bucket to the next start().
  void add(int64_t buffer, int64_t bucket) { queued_.emplace_back(buffer, bucket); }
  /// Steps the buckets of add() on a thread.
  void start();
  bool has_delayed() const { return delayed_.valid() || !finished_.empty(); }
  /// Waits for the thread and copies the bucket's new parameters to the device. Errors: what the step threw.
  void finish(int64_t buffer, int64_t bucket);
  /// Waits for the thread and drops its result and errors.
  void drop() noexcept;

 private:
  // Sums of squares of gradients that leave the device before the norm is computed, in the parts that the norm adds.
  struct LeftNorms {
    std::vector<std::vector<bucket::Range>> parts; // per bucket
    std::vector<at::Tensor> sums;                  // [parts], fp64, on the device
  };
  struct Kept {
    Buffer buffer;
    std::shared_ptr<LeftNorms> left_norms; // for gradients that do not stay on the device
    int gradient_set = 0;                  // of bucket::HostGradients, read by the current step
    std::vector<at::Tensor> results;       // of a delayed step: parameters on the host
  };

  void bring_gradients(Kept& kept) const;
  at::Tensor stepped(int64_t buffer, int64_t bucket);

  at::Device device_;
  HostStepOptions options_;
  WriteStepped write_stepped_;
  std::vector<Kept> buffers_;
  ParametersToDevice to_device_;
  std::vector<std::pair<int64_t, int64_t>> queued_;   // buffer and bucket, of a delayed step that begins
  std::vector<std::pair<int64_t, int64_t>> finished_; // of a delayed step: not copied to the device yet
  std::future<void> delayed_;                         // its destructor waits, so nothing above ends before
};

} // namespace trireme::optim
