#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/stepped_values.h>
#include <trireme/shards/data_parallel/reduce_groups.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel {

/// Exchanges gradients during backward. The Reducer calls it, on every rank in the same order: backward_begins(),
/// gradients_ready() for each bucket, backward_ended().
class GradientExchange {
 public:
  explicit GradientExchange(ReduceGroups groups) : groups_(std::move(groups)) {}
  virtual ~GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// The ranks that train one model.
  const comm::Group& group() const {
    return groups_.data();
  }
  /// The ranks that add up the gradients of a buffer.
  const ReduceGroups& groups() const {
    return groups_;
  }

  /// Gives the buffers: once, before the first backward. The parameters' first values may still change.
  virtual void attach(const std::vector<bucket::FlatParameters*>& /*buffers*/) {}
  /// Begins a backward whose gradients are reduced; `last` of the step's. Sharded gradients are reduced after every
  /// micro-batch.
  virtual void backward_begins(bool /*last*/) {}
  /// Starts the reduction of a bucket whose gradients are final on this rank. Not called for a buffer whose group has
  /// one rank, unless its gradients are sharded.
  virtual comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) = 0;
  /// Treats a bucket that only this rank has, while others are exchanged: there is nothing to start.
  virtual void gradients_alone(bucket::FlatParameters& /*buffer*/, int64_t /*bucket*/) {}
  /// Follows the last gradients_ready() of a backward; perhaps no bucket has arrived.
  virtual void backward_ended() {}
  /// The factor that turns what gradients_ready() leaves into the gradient of the step.
  virtual double scale() const {
    return 1;
  }

 private:
  ReduceGroups groups_;
};

/// Describes a step before it is taken: the same on all ranks that take it as one.
struct LossAndNorm {
  double loss = 0;
  /// The gradients are those before scale(), multiplied by the loss scale.
  double squared_norm = 0;
  /// Whether one of the processes was asked to stop.
  bool stop = false;
};

/// Computes this rank's summand of the squared norm: [1], fp64, on the parameters' device. Waits for the gradients.
class StepGradients {
 public:
  virtual ~StepGradients() = default;
  /// Counts gradients that gradients_ready() has summed.
  virtual at::Tensor squared_norm() = 0;
  /// Counts gradients that each rank has for itself. The sum over the ranks gives the root mean square of the ranks'
  /// norms.
  virtual at::Tensor own_squared_norm() = 0;
};

/// Decides how the ranks agree on loss and norm of a step. This one: they add up what each has. Called in this order.
class StepAgreement {
 public:
  virtual ~StepAgreement() = default;
  /// Returns this rank's summand; undefined: the step goes without a norm. `wanted`: clipping, the user or the look for
  /// overflow needs one.
  virtual at::Tensor squared_norm(StepGradients& gradients, bool wanted) const {
    return wanted ? gradients.squared_norm() : at::Tensor();
  }
  /// True: the host must know loss and norm before StepExchange::begin_step(). False: on a GPU kernels may be launched
  /// before, and change nothing if the step is skipped.
  virtual bool precedes_step() const {
    return false;
  }
  /// Takes the sums of this world's ranks and returns those of all who take the step. scale() is then the step's.
  virtual LossAndNorm agree(const LossAndNorm& sums) const {
    return sums;
  }
};

/// Agrees on a step while each rank still has its own gradients. The norm is the root mean square of the ranks' norms,
/// and always computed: gradients that are not finite must not be exchanged.
class OwnGradientsAgreement : public StepAgreement {
 public:
  at::Tensor squared_norm(StepGradients& gradients, bool /*wanted*/) const override {
    return gradients.own_squared_norm();
  }
  bool precedes_step() const override {
    return true;
  }
};

/// Exchanges parameters or momenta in the optimizer's step. This one: nothing.
///
/// A step that is taken: begin_step(), step_bucket() for each bucket, end_step(true). With "step_in_backward"
/// step_bucket() may precede backward_ended().
class StepExchange {
 public:
  virtual ~StepExchange() = default;
  /// Gives the optimizer's exact values and states: once, before the first backward.
  virtual void attach_optimizer(bucket::SteppedValues& /*values*/) {}
  /// Begins a step: all gradients have arrived, or stay. Changes of the step are said to SteppedValues now.
  virtual void begin_step() {}
  /// Calls `step`, which updates what this rank owns of the bucket, and starts what brings the parameters to the other
  /// ranks. Where the agreement does not precede the step, `step` may change nothing, and end_step(false) follows.
  virtual void step_bucket(bucket::FlatParameters& /*buffer*/, int64_t /*bucket*/, const std::function<void()>& step) {
    step();
  }
  /// Ends a step, taken or skipped. Returns when the parameters are those of the next forward. True: it changed
  /// parameters, and masters must follow.
  virtual bool end_step(bool /*taken*/) {
    return false;
  }
  /// Waits for all that is under way to the parameters: before they are loaded.
  virtual void finish() {}
  /// Seconds spent waiting for parameters so far.
  virtual double exposed_seconds() const {
    return 0;
  }
  /// Bytes sent other than over groups.
  virtual int64_t bytes_sent() const {
    return 0;
  }
};

/// Saves what a sync keeps between steps. This one: nothing.
class SyncState {
 public:
  virtual ~SyncState() = default;
  /// Small things for a checkpoint, the same on every rank; tensors by for_each_state(). Null: nothing.
  virtual nlohmann::json state() const;
  /// Continues after step `steps` with the state() of the run that saved, perhaps one of another kind. Errors:
  /// InputError.
  virtual void load_state(const nlohmann::json& state, int64_t steps);
  /// Calls visit(name, tensor, begin, values) for each piece of its tensors on this rank that a checkpoint of a run
  /// with this `state` has, and that fits these ranks; load_state() begins the others anew. A piece: elements [begin,
  /// begin + n) of a tensor with the shape of `tensor`, saved as "name/parameter". Pieces of two ranks do not overlap.
  /// A loader writes into them.
  using Visit = std::function<void(const std::string& name, const bucket::TensorInfo& tensor, int64_t begin,
                                   const at::Tensor& values)>;
  virtual void for_each_state(const nlohmann::json& state, const Visit& visit);
};

/// Describes replicas that take local steps, each with its own gradients, loss and norm, and become equal every few
/// steps (local SGD).
class LocalSteps {
 public:
  virtual ~LocalSteps() = default;
  /// Whether the present step is local. Changes in end_step() and load_state() only.
  virtual bool is_local() const = 0;
  /// Whether the step after step number `steps` is.
  virtual bool is_local_after(int64_t /*steps*/) const {
    return is_local();
  }
  /// Whether all replicas exchange something at the end of the present step: it reports their mean loss, and they may
  /// stop after it.
  virtual bool ends_round() const = 0;
  /// Steps from now until all replicas have the same parameters, as a checkpoint needs them; 0: they have.
  virtual int64_t steps_until_equal() const = 0;
  /// What differs between replicas even where parameters are equal: a checkpoint holds these of every replica.
  enum class Own { nothing, states, masters_and_states };
  virtual Own own_values() const {
    return Own::masters_and_states;
  }
};

} // namespace trireme::parallel
