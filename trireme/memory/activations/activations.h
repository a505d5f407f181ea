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

/// A part of a model whose activations are treated as one: a block of a transformer, a layer of a list.
struct ModelPart {
  /// Tells parts apart, the same in every forward: the module's address.
  const void* key = nullptr;
  /// The name of its class.
  std::string_view type = {};
  /// Its place in Options::choices; negative: parts take places in the order in which they are first called.
  int64_t place = -1;
  /// Treated so where nobody decides (Options): recomputed, or kept.
  bool recomputes = false;
  /// The first one of a forward: what was called before, for another micro-batch, is not brought back with it.
  bool begins = false;
  /// Of its recomputation.
  recompute::Options recompute = {};
};

/// Calls f, a part of a model, as the Activations that are active on this thread say; without them, and within another
/// part, f is called, or recomputed if the part says so. Parts of which no input requires a gradient are only called.
///
/// Losses and gradients are bit-equal to those of f(inputs), whatever becomes of the activations. What recompute::run()
/// asks of f holds here too, for it may be recomputed. Tensors that are saved must not change in place until backward,
/// as ever: an Error says so then.
Tensors run(const ModelPart& part, const Function& f, const Tensors& inputs);

/// Whether an Activations is active on this thread, and no part is being called.
bool active();

/// The same for a callable of tensors that returns a tensor, a vector, a pair or a tuple, as recompute::call():
///
///   x = activations::call({.key = block.get(), .type = "Block"}, [block](at::Tensor x) { return block->forward(x); },
///   x);
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

/// What "auto" has decided, by the places of parts (Activations::places()): for another run of the same model.
struct Decision {
  std::vector<Way> ways;
  /// As PartCost has them; 0 where no part was called.
  std::vector<int64_t> bytes;
  std::vector<int64_t> input_bytes;
  std::vector<int64_t> share_bytes;
};

/// Decides what becomes of the activations of a model's parts, moves them, and counts them.
///
/// Parts are known from the first forward on, in the order in which it calls them. With Options::automatic the first
/// two steps use the way that needs least memory and measure; then the caller has the ranks agree (measured(),
/// decide()). The choice changes no numbers.
///
/// Moved are storages that autograd saves inside a part, each once however many tensors view it; parameters and buffers
/// never. They leave while the forward goes on, and come back while the backward of the part behind computes. Source:
/// PyTorch's saved_tensors_hooks and save_on_cpu; Peng et al. 2020, "Capuchin" (ASPLOS), for the choice by measured
/// cost.
class Activations {
 public:
  class Impl; // of this folder
  /// `in_flight`: micro-batches whose activations wait at a time, more than 1 in a pipeline; `put_off`: as Problem has
  /// it. `sharing`: for Options::shares_inputs. Errors: InputError for a way that says nvme without nvme_path, a folder
  /// that cannot be made, an expression that is none.
  explicit Activations(Options options, at::Device device = at::kCPU, const aio::Options& aio = {},
                       int64_t in_flight = 1, Sharing sharing = {}, int64_t put_off = 0);
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  /// Parts that this thread calls are treated by this object while the result lives. `fixed`: parameters and buffers.
  std::shared_ptr<void> enter(const Tensors& fixed);

  /// A step is over: backward has run, nothing waits for one. Errors: InputError where Options::choices is longer than
  /// the forward.
  void end_step();
  /// Whether the measurements are complete and nobody has decided yet.
  bool wants_decision() const;
  /// What this rank measured; ranks of one model measure as many numbers. Waits for the device. Takes some tens of ms
  /// for the speed of moves. Collective where ranks keep shares. `host_room`: bytes of the host's memory that this rank
  /// may take for what a device moves there.
  std::vector<double> measured(int64_t host_room = std::numeric_limits<int64_t>::max()) const;
  /// Decides by the largest of all ranks, number by number. Returns what was decided, for people; ways() repeat it as
  /// Options::choices. Errors: InputError where nothing fits the budget, with what would.
  std::string decide(const std::vector<double>& largest);

  /// What was decided of the parts of this rank, with Options::automatic.
  Decision decision() const;
  /// Whether files, and the host of a device, have room for what would be there. `host_room`: as in measured(). Of a
  /// pipeline all stages count.
  bool has_room_for(const Decision& decision, int64_t host_room) const;
  /// Before the first forward: parts are treated as was decided then, if they get inputs of no more bytes; the others
  /// as in a first step. `all`: there are no parts at other places. After that step the caller has the ranks agree
  /// (doubts_adopted(), end_adoption()).
  void adopt(Decision decision, bool all);
  /// Whether a step with an adopted decision is over that nobody has agreed on.
  bool wants_adoption() const;
  /// Whether the parts of this rank are other ones, or get larger inputs.
  bool doubts_adopted() const;
  /// Nothing is measured any more; or, where a rank doubts, all is measured in the next two steps.
  void end_adoption(bool adopted);

  /// Steps so far; since an adopted decision was given up.
  int64_t steps() const;
  /// Classes of modules that were called and are no parts, because Options::layers says so. Each once.
  std::vector<std::string> left_out() const;
  /// The way of each part that was called so far, and its place in Options::choices.
  std::vector<Way> ways() const;
  std::vector<int64_t> places() const;
  const Options& options() const;
  /// Bytes that activations of parts have where the model is, now; and the most in the last step that ended.
  int64_t bytes() const;
  int64_t peak_bytes() const;
  /// Bytes that have left and come back.
  int64_t bytes_out() const;
  int64_t bytes_in() const;

 private:
  std::shared_ptr<Impl> impl_;
};

} // namespace trireme::activations
