#pragma once

#include <trireme/shards/bucket/flat_layout.h>
#include <trireme/shards/bucket/state_store.h>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::parallel {

/// The processes that train one model, each in its own world, as seen by one of them: workers of parameter servers, or
/// elastic replicas. A GradientSync returns it if not all ranks are in one world.
class Workers {
 public:
  virtual ~Workers() = default;

  /// A process's values besides parameters and optimizer states. The engine attaches it once.
  struct Rest {
    /// Serializes what a joining process needs to continue after the same step. `take` applies it.
    std::function<std::string()> state;
    std::function<void(const std::string& state)> take;
    /// Counts steps that were made without this process, up to `step`, and skips their samples.
    std::function<void(int64_t step)> skip_to;
    /// Throws in the middle of a step, when state cannot be applied.
    std::function<void()> check;
    /// Module buffers: after every averaging step, those of the oldest replica.
    std::vector<at::Tensor> buffers;
    /// Parameters that are not trained. A joining replica receives them too.
    std::vector<at::Tensor> fixed;
  };
  virtual void attach_rest(Rest rest) = 0;

  /// Elastic replicas: joins the others before the first step and before load_checkpoint(). Waits for the next
  /// averaging step. True: the others have trained, and this process continues from their mean at their step. False:
  /// all begin with the first replica's values.
  ///
  /// Errors: PeerError without the job's store. store::FinishedError, also in after_step(), if the others have finished
  /// the training: the process ends with status 0.
  virtual bool join() { return false; }
  /// Parameter servers: the training step of the servers' values; 0: no step was made.
  virtual int64_t step() const { return 0; }
  /// Parameter servers: a restarted worker continues from the servers' values, with the samples and learning rate of
  /// `step`.
  virtual void begin_at(int64_t /*step*/) {}
  /// Called after each step. Returns the number of steps that the training has made since the last call, this one
  /// included: more than one for a worker whose gradients came too late.
  virtual int64_t after_step() { return 1; }
  /// True if this process evaluates, saves and reports for all: the oldest elastic replica, or the worker with the
  /// lowest number.
  virtual bool is_first() = 0;
  /// Elastic replicas: called after the last step. The first replica has saved the result and reports it; the others
  /// wait for that. True: done. False: the first replica is lost, and this one has the same model: it must save and
  /// call finish() again. `saved` false: another process has become the first replica, and this one waits too.
  virtual bool finish(bool /*saved*/ = true) { return true; }
  /// Key of the bytes sent to the others in Engine::bytes_sent_by_axes().
  virtual std::string_view axis() const = 0;
};

/// Masters and optimizer states that other processes hold and step (parameter servers).
class RemoteStates {
 public:
  virtual ~RemoteStates() = default;

  /// A parameter's options that the remote optimizer needs.
  struct Parameter {
    double weight_decay = 0;
    double lr_factor = 1;
    /// True if the optimizer needs its norm.
    bool needs_norm = false;
  };
  /// Makes the store through which FlatOptimizer accesses masters and states, for saves and loads only.
  virtual std::unique_ptr<bucket::StateStore> make_store() = 0;
  /// Connects, and sends or receives initial values. Called after GradientSync::attach(). `optimizer`: a
  /// configuration's "optimizer". `arrays`: names of its states. Errors: InputError, PeerError.
  virtual void connect(const std::function<Parameter(const bucket::TensorInfo&)>& of, const nlohmann::json& optimizer,
                       const std::vector<std::string>& arrays) = 0;
  /// Fetches masters and states before a save.
  virtual void fetch() = 0;
  /// Reports that this rank has read the tensors of checkpoint `id` at `step`. When the other ranks have too, returns
  /// the step to continue after: more than `step` if they have trained on.
  virtual int64_t loaded(const std::string& id, int64_t step) = 0;
};

} // namespace trireme::parallel
