#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/bucket/stepped_values.h>
#include <trireme/comm/group.h>
#include <trireme/parallel/data/options.h>
#include <trireme/parallel/data/reduce_groups.h>
#include <trireme/parallel/data/workers.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel {

/// When and how data-parallel ranks agree on one model. The Reducer calls it for gradients, the engine for the step.
///
/// Every rank of step_group() makes the same calls in the same order: gradients_ready() for each bucket,
/// backward_ended(), then for a step that is taken step_bucket() for each bucket, and end_step(). With
/// "step_in_backward" step_bucket() may come before backward_ended().
class GradientSync {
 public:
  explicit GradientSync(ReduceGroups groups) : groups_(std::move(groups)) {}
  virtual ~GradientSync() = default;
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  /// The ranks that train one model.
  const comm::Group& group() const {
    return groups_.data();
  }
  /// Those that add up the gradients of a buffer.
  const ReduceGroups& groups() const {
    return groups_;
  }
  /// Those that take the present step as one: they have one loss and one gradient norm, and all of them step or none
  /// does. A group of one where each rank steps by itself. It changes in end_step() and load_state() at most.
  virtual const comm::Group& step_group() const {
    return group();
  }
  /// Whether the ranks take the step after step number `steps` each by itself.
  virtual bool steps_alone_after(int64_t /*steps*/) const {
    return step_group().size() < group().size();
  }
  /// Whether they ever do: then each rank has the whole of what it steps, and of its norm.
  bool ever_alone() const {
    return steps_alone_after(std::numeric_limits<int64_t>::max());
  }
  /// Whether all ranks of group() exchange something at the end of the present step: the step reports their mean loss,
  /// and they may stop after it.
  virtual bool ranks_meet() const {
    return true;
  }
  /// Steps from now until all ranks have the same parameters, as a checkpoint needs them; 0: they have.
  virtual int64_t steps_until_equal() const {
    return 0;
  }
  bool replicas_are_equal() const {
    return steps_until_equal() == 0;
  }
  /// What ranks that step alone have each of their own now, where their parameters are equal: checkpoints hold these of
  /// every rank.
  enum class Own { nothing, states, masters_and_states };
  virtual Own own_values() const {
    return Own::masters_and_states;
  }
  /// The factor that turns what gradients_ready() leaves into the gradient of the step.
  virtual double scale() const {
    return 1;
  }

  /// Whether gradients_ready() leaves this rank's own gradients in the present step, because the ranks exchange
  /// something else in step_bucket(). The step is agreed on before that: its norm is the root of the mean square of the
  /// ranks' norms, scale() turns the sum over the ranks into the gradient, and gradients that are not finite go
  /// nowhere.
  virtual bool gradients_stay() const {
    return false;
  }

  /// Whether the sum of all gradients is elsewhere (parameter servers): then agree() is called in each step instead of
  /// computing a norm here.
  virtual bool sums_elsewhere() const {
    return false;
  }
  /// Loss, squared norm and the wish to stop of all who take this step.
  struct Agreed {
    double loss = 0;
    double squared_norm = 0;
    bool stop = false;
  };
  /// Where sums_elsewhere(): sends the gradients and says what all have agreed on; scale() is then that of the step.
  /// `loss` and `stop` are this rank's.
  virtual Agreed agree(double loss, bool stop) {
    return {loss, 0, stop};
  }
  /// The other processes of the training, each in a world of its own; null: all ranks are in this world.
  virtual Workers* workers() {
    return nullptr;
  }
  /// Where masters and optimizer states are, if not on these ranks; null: FlatOptimizer has them.
  virtual RemoteStates* remote_states() {
    return nullptr;
  }
  /// Bytes sent other than over groups.
  virtual int64_t bytes_sent() const {
    return 0;
  }

  /// Says whose gradients will come: once, by the Reducer, before the first backward. The parameters' first values may
  /// still change.
  virtual void attach(const std::vector<bucket::FlatParameters*>& buffers);
  /// Gives the exact values and states of the same buffers: once, by the engine, before the first backward.
  virtual void attach_values(bucket::SteppedValues& values);
  /// A backward begins whose gradients are reduced; `last` of the step's. Where gradients are sharded every
  /// micro-batch's are.
  virtual void backward_begins(bool /*last*/) {}
  /// Starts the reduction of a bucket whose gradients are final on this rank. Not called for a buffer whose group has
  /// one rank, unless its gradients are sharded.
  virtual comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) = 0;
  /// The same for a bucket of which nobody else has the parameters, while other buckets are exchanged: there is nothing
  /// to start.
  virtual void gradients_alone(bucket::FlatParameters&, int64_t) {}
  /// All buckets of a backward have been handed to gradients_ready(); perhaps none has arrived.
  virtual void backward_ended() {}
  /// A step begins for which all gradients have arrived, or where they stay: before its first step_bucket(). What
  /// changes the step is said to SteppedValues now.
  virtual void begin_step() {}
  /// The bucket's gradients have arrived and the step is taken: calls `step`, which updates what this rank owns of the
  /// bucket, and starts what brings the parameters to the other ranks. On a GPU the host calls it before it knows
  /// whether the step is taken: if it is not, `step` changes nothing, and end_step(false) follows.
  virtual void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step);
  /// Ends a step, taken or skipped. Returns when the parameters are those of the next forward.
  /// True: it changed parameters by itself, so that masters have to follow.
  virtual bool end_step(bool taken);
  /// Returns when nothing of a step is on its way to the parameters: before they are loaded.
  virtual void finish() {}

  /// Seconds spent waiting for parameters so far.
  virtual double exposed_seconds() const {
    return 0;
  }

  /// What a checkpoint keeps: small things here, the same on every rank; tensors by for_each_state(). A null: nothing.
  virtual nlohmann::json state() const;
  /// Continues after step `steps`, with what state() gave in the run that saved; that may have been one of another
  /// kind. Errors: InputError.
  virtual void load_state(const nlohmann::json& state, int64_t steps);
  /// Calls visit(name, tensor, begin, values) for each piece of its tensors on this rank that a checkpoint of a run
  /// with this `state` has, and that fits these ranks; load_state() begins the others anew. A piece: elements [begin,
  /// begin + n) of a tensor with the shape of `tensor`, saved as "name/parameter". Pieces of two ranks do not overlap.
  /// A loader writes into them.
  using Visit = std::function<void(const std::string& name, const bucket::TensorInfo& tensor, int64_t begin,
                                   const at::Tensor& values)>;
  virtual void for_each_state(const nlohmann::json& state, const Visit& visit);

 private:
  ReduceGroups groups_;
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
