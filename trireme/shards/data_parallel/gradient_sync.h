#pragma once

#include <trireme/shards/data_parallel/options.h>
#include <trireme/shards/data_parallel/sync_roles.h>
#include <trireme/shards/data_parallel/workers.h>

#include <cstdint>
#include <optional>

namespace trireme::parallel {

/// Keeps one model on data-parallel ranks: an exchange of gradients, and the roles that it has besides. The Reducer
/// calls the exchange, the engine the other roles, on every rank of step_group() in the same order.
class GradientSync : public GradientExchange {
 public:
  using GradientExchange::GradientExchange;

  /// Decides how the ranks agree on the present step. Each step may have another one.
  virtual const StepAgreement& agreement() const {
    return sums_;
  }
  virtual StepExchange& step_exchange() {
    return nothing_to_exchange_;
  }
  virtual SyncState& sync_state() {
    return nothing_to_save_;
  }
  /// Null: all ranks take every step as one, and have the same parameters after it.
  virtual const LocalSteps* local_steps() const {
    return nullptr;
  }
  /// Null: all ranks are in this world.
  virtual Workers* workers() {
    return nullptr;
  }
  /// Null: FlatOptimizer has masters and states.
  virtual RemoteStates* remote_states() {
    return nullptr;
  }

  /// The ranks that take the present step as one: they have one loss and one norm, and all of them step or none does.
  /// group(); a group of one in a local step.
  const comm::Group& step_group() const;
  /// The ranks whose mean loss the present step reports.
  const comm::Group& loss_group() const {
    return may_stop() ? group() : step_group();
  }
  /// Whether the ranks may stop after the present step.
  bool may_stop() const {
    return local_steps() == nullptr || local_steps()->ends_round();
  }
  /// Whether each rank takes the step after step number `steps` for itself.
  bool steps_locally_after(int64_t steps) const;
  bool replicas_are_equal() const {
    return local_steps() == nullptr || local_steps()->steps_until_equal() == 0;
  }

 private:
  StepAgreement sums_;
  StepExchange nothing_to_exchange_;
  SyncState nothing_to_save_;
  comm::Group one_;
};

/// Where the sum of a bucket's gradients goes: to every rank, or to each its part of the bucket (bucket::ShardPlan),
/// half of the bytes.
enum class ReduceTo { all, shards };

/// Sums a bucket's gradients over `group` in place. They are sent as `travel`; where that is another type than theirs,
/// a converted copy of the bucket lives meanwhile. To all ranks it can be by an `algorithm` over messages, which has
/// ended when this returns. Cost for P bytes in that type and N ranks: 2P(N-1)/N sent by each rank, or P(N-1)/N to
/// shards; an algorithm's: comm::cost().
comm::Work reduce_bucket(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket, ReduceTo to,
                         at::ScalarType travel,
                         DataParallelOptions::Algorithm algorithm = DataParallelOptions::Algorithm::backend);

/// Every rank has the mean (or sum) of all ranks' gradients and steps everything: plain data parallel.
class AllReduceSync : public GradientSync {
 public:
  /// Gradients are sent as `travel`; absent: in their own type.
  AllReduceSync(ReduceGroups groups, const DataParallelOptions& options,
                std::optional<at::ScalarType> travel = std::nullopt);

  double scale() const override;
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override;
  /// What scale() expects of gradients before they are sent, 1 unless asked for: for those that are not sent by it.
  void apply_pre_scale(bucket::FlatParameters& buffer, int64_t bucket) const;
  /// The type that gradients travel in.
  at::ScalarType travel(const bucket::FlatParameters& buffer) const {
    return travel_.value_or(buffer.gradient_type());
  }

 protected:
  double pre_scale() const;
  /// To shards: over the ranks that hold one copy.
  comm::Work reduce(bucket::FlatParameters& buffer, int64_t bucket, ReduceTo to);

 private:
  DataParallelOptions options_;
  std::optional<at::ScalarType> travel_;
};

} // namespace trireme::parallel
