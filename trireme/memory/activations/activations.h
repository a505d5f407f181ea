#pragma once

#include <trireme/memory/activations/choice.h>
#include <trireme/memory/activations/options.h>
#include <trireme/memory/activations/sharing.h>
#include <trireme/memory/aio/options.h>
#include <trireme/memory/recompute/recompute.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::activations {

using recompute::Function;
using recompute::Tensors;

/// A part of a model whose activations share a policy: a block of a transformer, a layer of a list.
struct ModelPart {
  /// Identifies the part, the same in every forward: the module's address.
  const void* key = nullptr;
  /// The name of its class.
  std::string_view type = {};
  /// Index in Options::choices; negative: parts are numbered in the order of their first call.
  int64_t place = -1;
  /// Policy if Options has none: recomputed, or kept.
  bool recomputes = false;
  /// First part of a forward: parts called before it, for another micro-batch, are not prefetched with it.
  bool begins = false;
  /// Options of its recomputation.
  recompute::Options recompute = {};
};

/// Calls f, a part of a model, with the policy of the Activations active on this thread. Without one, and inside
/// another part, f is called, or recomputed if the part says so. Parts of which no input requires a gradient are only
/// called.
///
/// Losses and gradients are bit-equal to those of f(inputs) under every policy. f may be recomputed, so the
/// requirements of recompute::run() apply. Saved tensors must not change in place until backward, as always in PyTorch;
/// an Error reports it.
Tensors run(const ModelPart& part, const Function& f, const Tensors& inputs);

/// Whether an Activations is active on this thread and no part is being called.
bool active();

/// Runs a callable of tensors that returns a tensor, a vector, a pair or a tuple, as recompute::call() does:
///
///   x = activations::call({.key = block.get(), .type = "Block"},
///                         [block](at::Tensor x) { return block->forward(x); }, x);
template <typename F, typename... T>
auto call(const ModelPart& part, F f, const T&... tensors) {
  using Result = std::decay_t<decltype(f(at::Tensor(tensors)...))>;
  const Function listed = [f = std::move(f)](const Tensors& inputs) mutable {
    Tensors outputs;
    [&]<size_t... I>(std::index_sequence<I...>) {
      recompute::append(outputs, f(at::Tensor(inputs[I])...));
    }(std::index_sequence_for<T...>());
    return outputs;
  };
  size_t position = 0;
  return recompute::take<Result>(run(part, listed, Tensors{at::Tensor(tensors)...}), position);
}

/// The result of "auto", by index of the part (Activations::places()), for another run of the same model.
struct Decision {
  std::vector<Way> ways;
  /// As in PartCost; 0 if the part was not called.
  std::vector<int64_t> bytes;
  std::vector<int64_t> input_bytes;
  std::vector<int64_t> share_bytes;
};

/// Decides what happens to the activations of a model's parts, moves them, and counts them.
///
/// Parts are registered during the first forward, in the order of their calls. With Options::automatic the first two
/// steps use the policy that needs the least memory, and measure; then the caller has the ranks agree (measured(),
/// decide()). The choice changes no numbers.
///
/// Storages that autograd saves inside a part are moved, each once for all tensors that view it; parameters and buffers
/// never are. They are copied out during forward, and prefetched while the backward of the following part computes.
/// Source: PyTorch's saved_tensors_hooks and save_on_cpu; Peng et al. 2020, "Capuchin" (ASPLOS), for the choice by
/// measured cost.
class Activations {
 public:
  class Impl; // private to this folder
  /// `in_flight`: micro-batches whose activations wait at a time, more than 1 in a pipeline; `put_off`: see Problem.
  /// `sharing`: for Options::shares_inputs. Errors: InputError for an nvme policy without nvme_path, a folder that
  /// cannot be made, or an invalid regular expression.
  explicit Activations(Options options, at::Device device = at::kCPU, const aio::Options& aio = {},
                       int64_t in_flight = 1, Sharing sharing = {}, int64_t put_off = 0);
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  /// Manages the parts that this thread calls while the result lives. `fixed`: parameters and buffers.
  std::shared_ptr<void> enter(const Tensors& fixed);

  /// Ends a step: backward has run for every forward. Errors: InputError if Options::choices is longer than the
  /// forward.
  void end_step();
  /// Whether the measurements are complete and there is no decision yet.
  bool wants_decision() const;
  /// This rank's measurements; ranks of one model return equally many numbers. Waits for the device, and takes some
  /// tens of ms to measure the speed of moves. Collective if ranks keep shares. `host_room`: bytes of host memory that
  /// this rank may use for activations of a device.
  std::vector<double> measured(int64_t host_room = std::numeric_limits<int64_t>::max()) const;
  /// Decides by the largest value over all ranks of each measurement. Returns a description of the decision; ways()
  /// gives it as Options::choices. Errors: InputError if nothing fits the budget, with what would.
  std::string decide(const std::vector<double>& largest);

  /// The decision about this rank's parts, with Options::automatic.
  Decision decision() const;
  /// Whether files, and the host of a device, have room for this decision. `host_room`: as in measured(). All stages of
  /// a pipeline must have room.
  bool has_room_for(const Decision& decision, int64_t host_room) const;
  /// Adopts an earlier decision; call it before the first forward. It applies to parts whose inputs have at most as
  /// many bytes as then; other parts run as in a first step. `all`: parts at any other index are unexpected. After that
  /// step the caller has the ranks agree (doubts_adopted(), end_adoption()).
  void adopt(Decision decision, bool all);
  /// Whether a step with an adopted decision has ended and the ranks have not agreed on it yet.
  bool wants_adoption() const;
  /// Whether the parts of this rank differ from those decided on, or have larger inputs.
  bool doubts_adopted() const;
  /// Ends adoption: nothing more is measured if adopted; else the next two steps measure everything.
  void end_adoption(bool adopted);

  /// Steps so far, or since an adopted decision was rejected.
  int64_t steps() const;
  /// Classes of modules that were called but are no parts because of Options::layers, each once.
  std::vector<std::string> left_out() const;
  /// The policy of each part called so far, and its index in Options::choices.
  std::vector<Way> ways() const;
  std::vector<int64_t> places() const;
  const Options& options() const;
  /// Bytes of parts' activations in the memory of the model, now; and the peak of the last step that ended.
  int64_t bytes() const;
  int64_t peak_bytes() const;
  /// Bytes moved out and back.
  int64_t bytes_out() const;
  int64_t bytes_in() const;

 private:
  std::shared_ptr<Impl> impl_;
};

} // namespace trireme::activations
