#pragma once

#include <trireme/config/cuda_graph.h>
#include <trireme/data/batch.h>
#include <trireme/device/graph.h>
#include <trireme/device/stream.h>
#include <trireme/engine/parts.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::engine {

/// What forward and backward of a step read, always in the same memory of the device.
struct StepInputs {
  /// A micro-batch each.
  std::vector<data::Batch> batches;
  /// Factor of each loss, 0-dim, fp32; undefined: 1.
  std::vector<at::Tensor> weights;
  /// First gradient of each backward, 0-dim, in the loss's type.
  at::Tensor root;
};

/// Forward and backward of all micro-batches of a step, recorded as one graph for each combination of shapes, and
/// replayed with one launch. OptimizerStep ends the step after it, with a graph of its own where it can.
///
/// Steps run on a stream of their own, because the default one cannot be recorded. The gradient accumulators of
/// autograd keep the stream that they were made on, so initialize() makes them on it. The first steps, and the first
/// step of each new shape, run launch by launch. Host code of model and loss function runs while a step is recorded,
/// not in replays. Cost: memory for the activations of the largest shape, beside what launches outside of the graph
/// need.
class StepGraph {
 public:
  /// Launches forward and backward; returns the sum of the losses (fp64, 0-dim).
  using Launch = std::function<at::Tensor(const StepInputs& inputs)>;
  /// Returns the first gradient of backward for a loss like this one.
  using RootGradient = std::function<at::Tensor(const at::Tensor& loss)>;

  /// Null if `wanted` is off or the run cannot have graphs; rank 0 logs which. Errors: InputError if `wanted` is on and
  /// the run cannot have graphs.
  static std::unique_ptr<StepGraph> make(const Parts& parts, config::CudaGraph wanted, bool own_sync,
                                         const c10::Stream& stream);
  /// Why a run with these parts has no graphs; "": it can have them. `own_sync`: InitializeOptions::sync was given.
  static std::string why_not(const Parts& parts, bool own_sync);

  StepGraph(const Parts& parts, bool required, std::unique_ptr<device::GraphPool> pool, const c10::Stream& stream);

  /// Makes a stream current during its lifetime: after what is on the caller's stream, and before what comes there
  /// later.
  class OnStream {
   public:
    explicit OnStream(const c10::Stream& stream);
    /// The graphs' stream. Null: changes nothing.
    explicit OnStream(const StepGraph* graph);
    ~OnStream();
    /// For a caller who uses the tensor on its stream and frees it.
    at::Tensor give(at::Tensor tensor) const;
    OnStream(const OnStream&) = delete;
    OnStream& operator=(const OnStream&) = delete;

   private:
    c10::Stream outer_;
    c10::Stream own_;
    std::optional<device::OnStream> current_; // none if it was current
  };

  /// Whether a step of these micro-batches can be replayed, after it was recorded if need be. False: launch it one by
  /// one, with losses like `loss_seen()`.
  bool is_ready_for(const std::vector<data::Batch>& batches);
  /// A step of these micro-batches was launched one by one, with losses of this type.
  void ran_eagerly(const std::vector<data::Batch>& batches, at::ScalarType loss);
  /// Replays the step; returns the sum of the losses. Call it after is_ready_for(). Undefined: it could not be
  /// recorded, nothing was launched, and later steps are launched one by one. Errors: InputError instead of that, if
  /// graphs are required.
  at::Tensor run(const std::vector<data::Batch>& batches, const RootGradient& root, const Launch& launch);

  /// Steps replayed so far.
  int64_t replays() const { return replays_; }
  /// Graphs recorded so far.
  int64_t recordings() const { return recordings_; }

 private:
  // Type and shape of each tensor of each micro-batch, and what else the host reads of it.
  using Key = std::vector<int64_t>;
  struct Grad {
    bucket::FlatParameters* buffer;
    int64_t parameter;
    at::Tensor grad; // its place in the flat buffer
  };
  struct Recorded {
    Key key;
    at::ScalarType loss_type;
    StepInputs inputs;
    at::Tensor loss; // like the losses
    at::Tensor loss_sum;
    std::vector<Grad> grads;              // that a replay leaves
    std::unique_ptr<device::Graph> graph; // null: not recorded yet
  };

  static Key key_of(const std::vector<data::Batch>& batches);
  Recorded* find(const Key& key);
  void make_inputs(Recorded& entry, const std::vector<data::Batch>& batches) const;
  void fill(Recorded& entry, const std::vector<data::Batch>& batches, const at::Tensor& root) const;
  bool record(Recorded& entry, const Launch& launch);
  std::vector<Grad> grads() const;

  const Parts& parts_;
  bool required_;
  std::unique_ptr<device::GraphPool> pool_;
  std::list<Recorded> recorded_; // after the pool, which they must not outlive
  c10::Stream stream_;
  int64_t eager_steps_ = 0;
  int64_t replays_ = 0;
  int64_t recordings_ = 0;
  bool full_ = false;   // a shape beyond the last graph was seen
  bool failed_ = false; // a step could not be recorded
};

} // namespace trireme::engine
