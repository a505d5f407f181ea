#pragma once

#include <trireme/comm/group.h>
#include <trireme/data/batch.h>
#include <trireme/device/phase_timer.h>
#include <trireme/parallel/pipeline/channel.h>
#include <trireme/parallel/pipeline/module.h>
#include <trireme/parallel/pipeline/schedule.h>

#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace trireme::pipeline {

class SplitBackward;

/// Runs the schedule's instructions on one stage.
///
/// Sends an activation or a gradient as soon as it exists, and receives the next one in the background while this stage
/// computes; the schedule orders the computations. After an output was copied for the next stage, its memory is freed;
/// only its node in the graph is kept.
class Executor {
 public:
  /// Functions of the engine that the schedule calls.
  struct Callbacks {
    /// Called before a backward of `chunk`; `last`: its gradients are final afterwards.
    std::function<void(int chunk, bool last)> before_backward;
    std::function<void()> reduce_tied_grads;
    std::function<void()> reduce_grads;
  };
  using NextBatch = std::function<data::Batch()>;
  /// The loss scale of a micro-batch in backward, by the loss's type.
  using LossScale = std::function<double(at::ScalarType loss)>;

  /// Makes the channels to the neighbours and checks the schedule. `pipe`: this rank's pipeline. `replica` of
  /// `replicas` pipelines: selects the random numbers of seed_layers. `device`: where this stage computes; all stages
  /// use the same kind.
  Executor(PipelineModule& model, comm::Group pipe, int replica = 0, int replicas = 1, at::Device device = at::kCPU);
  ~Executor();

  /// Runs forward and backward of `micro_batches`. Only the first and the last stage call `next`, once
  /// per micro-batch, and use its inputs and targets. `first_micro_batch` counts those of all earlier
  /// steps (seed_layers). `loss_scale` is called on the last stage. Errors: Error naming both stages
  /// when their messages do not fit, or inputs and targets belong to different samples. After any
  /// exception a pipeline of several stages has ended: the next call throws Error. A single stage can
  /// continue.
  void train(int micro_batches, int64_t first_micro_batch, const LossScale& loss_scale, const NextBatch& next,
             const Callbacks& callbacks);

  /// Runs forward of `micro_batches` without gradients, and calls `visit(outputs, batch)` on the last stage.
  using Visit = std::function<void(const Tensors& outputs, const data::Batch& batch)>;
  void evaluate(int micro_batches, const NextBatch& next, const Visit& visit);

  /// Sum of the losses so far of the running or last batch: float64 on the device; undefined without a
  /// loss.
  const at::Tensor& loss_sum() const { return loss_sum_; }
  /// Times of the last trained batch. On a GPU forward and backward are GPU times (device/phase_timer.h) of the newest
  /// batch that is known to be finished; the host does not wait for them.
  struct Seconds {
    double forward = 0;
    double backward = 0;
    double waiting = 0; ///< for messages of the neighbours
  };
  Seconds seconds();

  bool loads_inputs() const { return pipe_.rank() == 0; }
  bool loads_targets() const { return pipe_.rank() == pipe_.size() - 1; }
  /// Largest number of micro-batches in flight so far, over all chunks.
  int peak_in_flight() const { return peak_in_flight_; }

 private:
  // One micro-batch in one chunk, from its arrival to the end of its backward.
  struct InFlight {
    Tensors inputs;
    uint64_t fingerprint = 0; // as in data::Batch
    bool identified_by_contents = false;
    std::vector<torch::autograd::Edge> roots; ///< of the outputs that require a gradient
    std::vector<Layout::Entry> outputs;       ///< of all outputs
    std::vector<bool> wants_grad;
    Tensors grads;
    std::shared_ptr<SplitBackward> split;
    bool sent = false;
  };
  struct Channels {
    std::unique_ptr<RecvChannel> activations_in;
    std::unique_ptr<SendChannel> activations_out;
    std::unique_ptr<RecvChannel> grads_in;
    std::unique_ptr<SendChannel> grads_out;
  };

  void open_channels(at::Device device);
  const Program& program(int micro_batches, bool training);
  void run(const Program& program);
  void interpret(const Program& program);
  void load(int micro_batch);
  Message receive(RecvChannel& channel, int micro_batch);
  void recv_activation(const Instruction& instruction);
  void recv_grad(const Instruction& instruction);
  void forward(const Instruction& instruction);
  void keep_graph(InFlight& flight, const Tensors& outputs);
  void finish_forward(const Instruction& instruction, InFlight& flight, const Tensors& outputs);
  void backward(const Instruction& instruction);
  void backward_weight(const Instruction& instruction);
  void announce(const Program& todo) const;
  void begin_computation(const Instruction& instruction) const;
  bool completes_gradients(const Instruction& instruction) const;
  void send_grads(const Instruction& instruction, InFlight& flight);
  void check_fingerprint(const Instruction& instruction, const InFlight& flight) const;

  int virtual_stage(int chunk) const { return chunk * pipe_.size() + pipe_.rank(); }
  bool is_first(int chunk) const { return virtual_stage(chunk) == 0; }
  bool is_last(int chunk) const { return virtual_stage(chunk) == pipe_.size() * model_.options().chunks - 1; }
  InFlight& flight(const Instruction& instruction) { return flights_[instruction.chunk][instruction.micro_batch]; }

  PipelineModule& model_;
  comm::Group pipe_;
  int replica_;
  int replicas_;
  std::vector<Channels> channels_;                                           // by chunk
  std::string failure_;                                                      // several stages: what ended them
  std::vector<decltype(torch::autograd::Edge::function)> kept_accumulators_; // parameters hold only weak references
  std::unordered_set<torch::autograd::Node*> accumulators_;
  std::unordered_map<torch::autograd::Node*, std::shared_ptr<torch::nn::Module>>
      layer_of_; // layer with the accumulator's parameter
  std::map<std::pair<int, bool>, Program> programs_;

  // State of the batch that is running.
  bool training_ = false;
  int64_t first_micro_batch_ = 0;
  const LossScale* loss_scale_ = nullptr;
  at::Tensor loss_sum_;
  const NextBatch* next_ = nullptr;
  const Callbacks* callbacks_ = nullptr;
  const Visit* visit_ = nullptr;
  std::vector<std::map<int, InFlight>> flights_; // by chunk and micro-batch
  std::map<int, data::Batch> batches_;
  std::map<int, int> backwards_left_; // by chunk
  int peak_in_flight_ = 0;
  Seconds seconds_;
  struct OnDevice {
    device::PhaseTimer forward;
    device::PhaseTimer backward;
  };
  std::optional<OnDevice> on_device_;
};

} // namespace trireme::pipeline
