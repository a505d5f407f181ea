#pragma once

#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/data_parallel/sync_roles.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Throws InputError: a bucket cannot hold a sparse gradient.
[[noreturn]] void refuse_sparse_gradient(const std::string& parameter);

/// Sends gradients bucket by bucket while backward computes the rest.
///
/// A hook on every parameter moves its gradient into the flat buffer. When a bucket is complete, it is handed to the
/// GradientExchange. All ranks start the buckets of all buffers in one order, which depends on the layouts alone and
/// not on the order of the gradients. Parameters without a gradient are sent as zeros. If a buffer's gradients are
/// sharded, a bucket's memory is freed after its reduction.
///
/// exposed_seconds() measures the communication that backward did not hide. Source: Li et al. 2020, arXiv:2006.15704,
/// section 3.
class Reducer {
 public:
  /// Installs the hooks; the buffers and `sync` must outlive the reducer.
  Reducer(const std::vector<bucket::FlatParameters*>& buffers, GradientExchange& sync);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Off: gradients of any backward are dropped before they reach a parameter's grad, and nothing is sent. On by
  /// default. torch::autograd::grad() is not affected.
  void set_accepting(bool on);
  /// Off: backward only accumulates (all but the last micro-batch of a step).
  void set_synchronising(bool on);
  bool synchronising() const;

  /// All backwards between begin() and end() count as one: a pipeline runs its micro-batches part by part. Gradients
  /// become final only in backwards with set_synchronising(true).
  void begin();
  void end();
  /// Ends a backward that failed between begin() and end(). Without begin() this happens automatically. A group of one
  /// may continue. In a larger group the other ranks wait for this rank's gradients, so the group ends: they get a
  /// PeerError that names this rank, and begin() throws on this rank from then on. Does nothing if no backward is
  /// running. Never throws.
  void abandon() noexcept;
  /// Delays these parameters' gradients until end(), because the caller adds to them before.
  void hold(const std::vector<at::Tensor>& parameters);
  /// A gradient of one of these parameters also begins a backward. The caller sends it.
  void watch(std::vector<at::Tensor> parameters);
  /// Watches again those parameters whose other reducer has been destroyed.
  void watch_again();
  /// True unless another reducer has taken the parameter over.
  bool watches(const at::Tensor& parameter) const;

  /// Sets a callback for each bucket of a synchronising backward, in the order of the buckets. It is called as soon as
  /// the sum is complete, while backward computes the rest. Buckets whose sum is not complete when backward ends are
  /// skipped.
  void on_bucket_final(std::function<void(int64_t buffer, int64_t bucket)> callback);

  /// Waits for one bucket of the backward that has ended.
  void wait(int64_t buffer, int64_t bucket);
  /// Waits for all buckets.
  void finish();
  /// Starts every bucket with its present gradients (zeros if there are none), as a backward without parameters would.
  void reduce_without_backward();

  /// Seconds spent in wait() and finish() so far: communication that backward did not hide.
  double exposed_seconds() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

} // namespace trireme::parallel
