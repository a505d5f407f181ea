#pragma once

#include <trireme/shards/data_parallel/options.h>
#include <trireme/shards/data_parallel/sync_roles.h>
#include <trireme/shards/data_parallel/workers.h>

#include <cstdint>
#include <optional>

namespace trireme::parallel {

/// Keeps one model on data-parallel ranks: an exchange of gradients, and optional roles. The Reducer calls the exchange
/// and the engine calls the roles, on every rank of step_group() in the same order.
class GradientSync : public GradientExchange {
 public:
  using GradientExchange::GradientExchange;

  /// Decides how the ranks agree on the present step. It may change from step to step.
  virtual const StepAgreement& agreement() const { return sums_; }
  virtual StepExchange& step_exchange() { return nothing_to_exchange_; }
  virtual SyncState& sync_state() { return nothing_to_save_; }
  /// Null: all ranks take every step jointly and have the same parameters after it.
  virtual const LocalSteps* local_steps() const { return nullptr; }
  /// Null: all ranks are in this world.
  virtual Workers* workers() { return nullptr; }
  /// Null: FlatOptimizer owns masters and states.
  virtual RemoteStates* remote_states() { return nullptr; }

  /// The ranks that take the present step jointly: they have one loss and one norm, and either all of them step or
  /// none. group(), or a group of one in a local step.
  const comm::Group& step_group() const;
  /// The ranks whose mean loss the present step reports.
  const comm::Group& loss_group() const { return may_stop() ? group() : step_group(); }
  /// True if the ranks may stop after the present step.
  bool may_stop() const { return local_steps() == nullptr || local_steps()->ends_round(); }
  /// True if the step after step number `steps` takes the sum of the gradients of all ranks that train the model.
  /// False: it may take those of some ranks only, as workers of parameter servers do when one is late.
  bool sums_all_after(int64_t steps);
  /// True if the step after step number `steps` is local to each rank.
  bool steps_locally_after(int64_t steps) const;
  bool replicas_are_equal() const { return local_steps() == nullptr || local_steps()->steps_until_equal() == 0; }
  /// True if nothing of the sync needs to know at the end of the present step whether it is taken.
  bool may_end_unknown() { return &agreement() == &sums_ && !step_exchange().end_step_differs(); }

 private:
  class NoExchange final : public StepExchange {
    bool end_step_differs() const override { return false; }
  };

  StepAgreement sums_;
  NoExchange nothing_to_exchange_;
  SyncState nothing_to_save_;
  comm::Group one_;
};

/// Destination of the sum of a bucket's gradients: every rank, or to each rank its slice of the bucket
/// (bucket::ShardPlan), which halves the bytes.
enum class ReduceTo { all, shards };

/// Sums a bucket's gradients over `group` in place. They are sent in type `travel`; if the gradients have another type,
/// a converted copy of the bucket exists until the work ends. With ReduceTo::all, `algorithm` may choose an all-reduce
/// over messages, which is finished when this returns.
///
/// Cost for P bytes in that type and N ranks: each rank sends 2P(N-1)/N, or P(N-1)/N to shards. Algorithms over
/// messages: comm::cost().
comm::Work reduce_bucket(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket, ReduceTo to,
                         at::ScalarType travel,
                         DataParallelOptions::Algorithm algorithm = DataParallelOptions::Algorithm::backend);

/// Gives every rank the mean (or sum) of all ranks' gradients; every rank steps everything: plain data parallelism.
class AllReduceSync : public GradientSync {
 public:
  /// Gradients are sent in type `travel`, or in their own type if it is absent.
  AllReduceSync(ReduceGroups groups, const DataParallelOptions& options,
                std::optional<at::ScalarType> travel = std::nullopt);

  double scale() const override;
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override;
  /// Multiplies gradients by the factor that scale() expects to be applied before the sum (1 by default). For gradients
  /// that are not sent by gradients_ready().
  void apply_pre_scale(bucket::FlatParameters& buffer, int64_t bucket) const;
  /// The type in which gradients are sent.
  at::ScalarType travel(const bucket::FlatParameters& buffer) const { return travel_.value_or(buffer.gradient_type()); }

 protected:
  double pre_scale() const;
  /// ReduceTo::shards reduces over the ranks that hold one copy.
  comm::Work reduce(bucket::FlatParameters& buffer, int64_t bucket, ReduceTo to);

 private:
  DataParallelOptions options_;
  std::optional<at::ScalarType> travel_;
};

} // namespace trireme::parallel
