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

/// The processes that train one model, each in a world of its own, as one of them sees the others: workers of parameter
/// servers, or elastic replicas. A GradientSync has it where ranks are not all in one world.
class Workers {
 public:
  virtual ~Workers() = default;

  /// What a process has besides parameters and optimizer states, given once by the engine.
  struct Rest {
    /// Serializes what another process needs to continue after the same step; applies it.
    std::function<std::string()> state;
    std::function<void(const std::string& state)> take;
    /// Counts steps that were made without this process, up to `step`, and skips their samples.
    std::function<void(int64_t step)> skip_to;
    /// Throws in the middle of a step, when nothing can be taken.
    std::function<void()> check;
    /// Buffers of modules: those of the oldest replica after every averaging step.
    std::vector<at::Tensor> buffers;
    /// What a joining replica takes besides: parameters that are not trained.
    std::vector<at::Tensor> fixed;
  };
  virtual void attach_rest(Rest rest) = 0;

  /// Elastic replicas: joins the others before the first step, and before load_checkpoint(). True: they have trained,
  /// and this process continues from their mean at their step. False: all begin as the first one did. Waits for the
  /// next averaging step. Errors: PeerError without the job's store; store::FinishedError, here and in after_step(), if
  /// the others have finished the training: the process ends with status 0.
  virtual bool join() {
    return false;
  }
  /// Parameter servers: the training step that the servers' values belong to; 0: the beginning.
  virtual int64_t step() const {
    return 0;
  }
  /// Parameter servers: a restarted worker continues from the servers' values, with the samples and the learning rate
  /// of `step`.
  virtual void begin_at(int64_t /*step*/) {}
  /// After each step. Returns the steps that the training has made since the last call, this one included: more than
  /// one for a worker whose gradients came too late.
  virtual int64_t after_step() {
    return 1;
  }
  /// Whether this process evaluates, saves and reports for all: of elastic replicas the oldest, of workers the one with
  /// the lowest number.
  virtual bool is_first() = 0;
  /// Elastic replicas, after the last step: the first one has saved the result and reports it; the others wait for
  /// that. True: done. False: the first one is lost, and this one, with the same model, has to save and call it again.
  /// `saved` false: another process has taken the first one's place, and it waits too.
  virtual bool finish(bool /*saved*/ = true) {
    return true;
  }
  /// What Engine::bytes_sent_by_axes() calls the bytes that were sent to the others.
  virtual std::string_view axis() const = 0;
};

/// Masters and optimizer states that other processes hold and step (parameter servers).
class RemoteStates {
 public:
  virtual ~RemoteStates() = default;

  /// What the optimizer of the others needs to know of a parameter.
  struct Parameter {
    double weight_decay = 0;
    double lr_factor = 1;
    /// The optimizer needs its norm.
    bool needs_norm = false;
  };
  /// Where FlatOptimizer finds its masters and states, for saves and loads only.
  virtual std::unique_ptr<bucket::StateStore> make_store() = 0;
  /// Connects, and gives or takes first values. `optimizer`: a configuration's "optimizer"; `arrays`: names of its
  /// states. After GradientSync::attach(). Errors: InputError, PeerError.
  virtual void connect(const std::function<Parameter(const bucket::TensorInfo&)>& of, const nlohmann::json& optimizer,
                       const std::vector<std::string>& arrays) = 0;
  /// Fetches masters and states before a save.
  virtual void fetch() = 0;
  /// The tensors of checkpoint `id` at `step` have been read on this rank. Returns, when the others have them, the step
  /// to continue after: more than `step` where they have trained on.
  virtual int64_t loaded(const std::string& id, int64_t step) = 0;
};

} // namespace trireme::parallel
