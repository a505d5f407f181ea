#pragma once

#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/data_parallel/sync_roles.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Throws the InputError for a sparse gradient, which has no place in a bucket.
[[noreturn]] void refuse_sparse_gradient(const std::string& parameter);

/// Sends gradients bucket by bucket while backward is still computing the rest.
///
/// A hook on every parameter moves its fresh gradient into the flat buffer; the
/// last one of a bucket hands it to the GradientExchange. All buckets of all buffers start in one order, which follows
/// from their layouts alone, on every rank, whatever order gradients arrive in, so ranks never disagree. Parameters
/// without a gradient take part with zeros. Buffers whose gradients are sharded lose a bucket's memory once it is
/// reduced.
///
/// exposed_seconds() says what of the communication backward did not hide.
/// Source: Li et al. 2020, arXiv:2006.15704, section 3.
class Reducer {
 public:
  /// Installs the hooks; the buffers and `sync` must outlive the reducer.
  Reducer(const std::vector<bucket::FlatParameters*>& buffers, GradientExchange& sync);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Off: what any backward gives the parameters is dropped before it reaches their grad, and nothing is sent. On at
  /// first. torch::autograd::grad() gives the same as ever.
  void set_accepting(bool on);
  /// Off: backward only accumulates (all but the last micro-batch of a step).
  void set_synchronising(bool on);
  bool synchronising() const;

  /// Between begin() and end() all backwards are one: a pipeline's micro-batches, part by part of
  /// the model. Only those with set_synchronising(true) make gradients final.
  void begin();
  void end();
  /// Ends a backward that failed between begin() and end(). A group of one goes on; in a larger one the other ranks
  /// wait for what this one will not send, so the group ends: they get a PeerError that names this rank, and begin()
  /// throws here from then on. Nothing happens when none is under way. Without begin() it happens by itself. Never
  /// throws.
  void abandon() noexcept;
  /// These parameters' gradients are final at end() only: something else is added to them before.
  void hold(const std::vector<at::Tensor>& parameters);
  /// A gradient of one of these begins a backward too, though somebody else sends it.
  void watch(std::vector<at::Tensor> parameters);
  /// Watches those of them again that another reducer has let go of.
  void watch_again();
  /// Whether no other reducer has taken such a parameter over since.
  bool watches(const at::Tensor& parameter) const;

  /// Called in a synchronising backward for each bucket in the order of all, as soon as its sum is there: while
  /// backward computes the rest. Buckets that were not handed over by its end are not any more.
  void on_bucket_final(std::function<void(int64_t buffer, int64_t bucket)> callback);

  /// Waits for one bucket of the backward that has ended.
  void wait(int64_t buffer, int64_t bucket);
  /// Waits for all buckets.
  void finish();
  /// Starts every bucket with the gradients as they are (zeros where there are none),
  /// as a backward without any parameter would.
  void reduce_without_backward();

  /// Time spent in wait() and finish() so far: communication that backward did not hide.
  double exposed_seconds() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

} // namespace trireme::parallel
