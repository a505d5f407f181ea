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

/// Exchanges gradients during backward. The Reducer calls it on every rank in the same order: backward_begins(),
/// gradients_ready() for each bucket, backward_ended().
class GradientExchange {
 public:
  explicit GradientExchange(ReduceGroups groups) : groups_(std::move(groups)) {}
  virtual ~GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// The ranks that train one model.
  const comm::Group& group() const { return groups_.data(); }
  /// The ranks that sum the gradients of a buffer.
  const ReduceGroups& groups() const { return groups_; }

  /// Receives the buffers, once, before the first backward. The parameters' initial values may still change.
  virtual void attach(const std::vector<bucket::FlatParameters*>& /*buffers*/) {}
  /// Begins a backward whose gradients are reduced. `last`: it is the last one of the step. Sharded gradients are
  /// reduced after every micro-batch.
  virtual void backward_begins(bool /*last*/) {}
  /// Starts the reduction of a bucket whose gradients are final on this rank. Not called for a buffer whose group has
  /// one rank, unless its gradients are sharded.
  virtual comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) = 0;
  /// Called for a bucket that only this rank has, while other buckets are exchanged. Nothing is sent.
  virtual void gradients_alone(bucket::FlatParameters& /*buffer*/, int64_t /*bucket*/) {}
  /// Follows the last gradients_ready() of a backward. Collectives may still be running.
  virtual void backward_ended() {}
  /// The factor that turns the result of gradients_ready() into the gradient of the step.
  virtual double scale() const { return 1; }

 private:
  ReduceGroups groups_;
};

/// Describes a step before it is taken; equal on all ranks that take it jointly.
struct LossAndNorm {
  double loss = 0;
  /// Norm of the gradients before scale(), multiplied by the loss scale; squared.
  double squared_norm = 0;
  /// True if one of the processes was asked to stop.
  bool stop = false;
};

/// Computes this rank's summand of the squared norm: [1], fp64, on the parameters' device. Waits for the gradients.
class StepGradients {
 public:
  virtual ~StepGradients() = default;
  /// Uses the gradients that gradients_ready() has summed.
  virtual at::Tensor squared_norm() = 0;
  /// Uses this rank's own gradients. The sum over the ranks gives the root mean square of the ranks' norms.
  virtual at::Tensor own_squared_norm() = 0;
};

/// Decides how the ranks agree on loss and norm of a step. The base class sums them over the ranks. Methods are called
/// in this order.
class StepAgreement {
 public:
  virtual ~StepAgreement() = default;
  /// Returns this rank's summand; undefined: the step has no norm. `wanted`: clipping, the caller or the overflow check
  /// needs one.
  virtual at::Tensor squared_norm(StepGradients& gradients, bool wanted) const {
    return wanted ? gradients.squared_norm() : at::Tensor();
  }
  /// True: the host needs loss and norm before StepExchange::begin_step(). False: on a GPU, kernels may be launched
  /// earlier, and change nothing if the step is skipped.
  virtual bool precedes_step() const { return false; }
  /// Takes the sums of this world's ranks and returns those of all processes that take the step. From then on scale()
  /// is the step's.
  virtual LossAndNorm agree(const LossAndNorm& sums) const { return sums; }
};

/// Agrees on a step before gradients are exchanged. The norm is the root mean square of the ranks' norms. It is always
/// computed, because gradients that are not finite must not be exchanged.
class OwnGradientsAgreement : public StepAgreement {
 public:
  at::Tensor squared_norm(StepGradients& gradients, bool /*wanted*/) const override {
    return gradients.own_squared_norm();
  }
  bool precedes_step() const override { return true; }
};

/// Exchanges parameters or momenta in the optimizer's step. The base class exchanges nothing.
///
/// Calls per step: begin_step(), step_bucket() for each bucket, end_step(true). With "step_in_backward" step_bucket()
/// may precede backward_ended().
class StepExchange {
 public:
  virtual ~StepExchange() = default;
  /// Receives the optimizer's exact values and states, once, before the first backward.
  virtual void attach_optimizer(bucket::SteppedValues& /*values*/) {}
  /// Begins a step: all gradients have arrived, or are not exchanged. An override passes changes of the step to
  /// SteppedValues now.
  virtual void begin_step() {}
  /// Calls `step`, which updates this rank's slice of the bucket, and starts sending the new parameters to the other
  /// ranks. Unless the agreement precedes the step, `step` may change nothing, and end_step(false) follows.
  virtual void step_bucket(bucket::FlatParameters& /*buffer*/, int64_t /*bucket*/, const std::function<void()>& step) {
    step();
  }
  /// Ends a step, taken or skipped. When it returns, parameters are ready for the next forward. Returns true if it
  /// changed parameters, so that masters must be updated.
  virtual bool end_step(bool /*taken*/) { return false; }
  /// False: end_step() does the same for both. On a GPU the host then calls end_step(true) for each step whose kernels
  /// it has launched, and learns a step later whether they changed anything.
  virtual bool end_step_differs() const { return true; }
  /// Waits for all transfers of parameters. Called before parameters are loaded.
  virtual void finish() {}
  /// Seconds spent waiting for parameters so far.
  virtual double exposed_seconds() const { return 0; }
  /// Bytes sent outside of groups.
  virtual int64_t bytes_sent() const { return 0; }
};

/// Saves what a sync keeps between steps. The base class has nothing to save.
class SyncState {
 public:
  virtual ~SyncState() = default;
  /// Returns small values for a checkpoint, equal on every rank; tensors are visited by for_each_state(). Null: none.
  virtual nlohmann::json state() const;
  /// Continues after step `steps` with the state() of the run that saved, which may be of another kind. Errors:
  /// InputError.
  virtual void load_state(const nlohmann::json& state, int64_t steps);
  /// Calls visit(name, tensor, begin, values) for each piece of this rank's tensors that a checkpoint with this `state`
  /// has and that fits these ranks. load_state() resets the others. A piece has the elements [begin, begin + n) of a
  /// tensor with the shape of `tensor`, saved as "name/parameter". Pieces of two ranks do not overlap. A loader writes
  /// into `values`.
  using Visit = std::function<void(const std::string& name, const bucket::TensorInfo& tensor, int64_t begin,
                                   const at::Tensor& values)>;
  virtual void for_each_state(const nlohmann::json& state, const Visit& visit);
};

/// Describes replicas that take local steps, each with its own gradients, loss and norm, and become equal every few
/// steps (local SGD).
class LocalSteps {
 public:
  virtual ~LocalSteps() = default;
  /// True if the present step is local. Changes in end_step() and load_state() only.
  virtual bool is_local() const = 0;
  /// True if the step after step number `steps` is local.
  virtual bool is_local_after(int64_t /*steps*/) const { return is_local(); }
  /// True if all replicas exchange something at the end of the present step. The step then reports their mean loss, and
  /// they may stop after it.
  virtual bool ends_round() const = 0;
  /// Number of steps until all replicas have the same parameters, as a checkpoint needs; 0: they have now.
  virtual int64_t steps_until_equal() const = 0;
  /// Values that differ between replicas even if parameters are equal. A checkpoint saves them for every replica.
  enum class Own { nothing, states, masters_and_states };
  virtual Own own_values() const { return Own::masters_and_states; }
};

} // namespace trireme::parallel
