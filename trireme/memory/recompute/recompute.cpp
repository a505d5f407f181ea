#include <trireme/memory/recompute/recompute.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/memory/recompute/saver.h>
#include <trireme/memory/recompute/state.h>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <string_view>

namespace trireme::recompute {
namespace {

using torch::autograd::variable_list;

// Where an output of f comes from.
struct Source {
  enum Kind { undefined, input, plain, differentiable } kind;
  int64_t index = 0; // of the input, or among the differentiable outputs

  bool operator==(const Source&) const = default;
};

struct Outputs {
  std::vector<Source> sources;
  Tensors differentiable; // each once
};

Outputs sort(const Tensors& outputs, const Tensors& leaves) {
  Outputs sorted;
  const auto find = [](const Tensors& list, const at::Tensor& tensor) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].defined() && list[i].is_same(tensor)) {
        return static_cast<int64_t>(i);
      }
    }
    return int64_t{-1};
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) {
      sorted.sources.push_back({Source::undefined});
    } else if (const int64_t input = find(leaves, output); input >= 0) {
      sorted.sources.push_back({Source::input, input});
    } else if (!output.requires_grad()) {
      sorted.sources.push_back({Source::plain});
    } else {
      int64_t index = find(sorted.differentiable, output);
      if (index < 0) {
        index = static_cast<int64_t>(sorted.differentiable.size());
        sorted.differentiable.push_back(output);
      }
      sorted.sources.push_back({Source::differentiable, index});
    }
  }
  return sorted;
}

std::string describe(const std::vector<at::IntArrayRef>& sizes, const std::vector<at::ScalarType>& types,
                     size_t outputs) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(concat(sizes[i], ' ', types[i]));
  }
  return concat(outputs, outputs == 1 ? " tensor" : " tensors",
                parts.empty() ? "" : ", with a gradient: ", join(parts, ", "));
}

// Saved by the first run for the second.
struct Record : torch::CustomClassHolder {
  Function f;
  RandomState random;
  AutocastState autocast;
  Tensors buffers;
  std::vector<bool> defined;       // for each input
  std::vector<bool> requires_grad; // for each defined input
  std::vector<Source> sources;
  std::vector<std::vector<int64_t>> sizes; // of the differentiable outputs
  std::vector<at::ScalarType> types;
  Tensors first_outputs; // only until they are in the graph

  void check(const Outputs& again) const {
    std::vector<at::IntArrayRef> before(sizes.begin(), sizes.end());
    std::vector<at::IntArrayRef> now;
    std::vector<at::ScalarType> types_now;
    for (const at::Tensor& output : again.differentiable) {
      now.push_back(output.sizes());
      types_now.push_back(output.scalar_type());
    }
    if (sources != again.sources || before != now || types != types_now) {
      throw Error("recompute",
                  concat("a recomputed function returned different tensors in backward (",
                         describe(now, types_now, again.sources.size()), ") than in forward (",
                         describe(before, types, sources.size()), ')'),
                  "Make it depend only on its inputs and on random numbers, not on anything that changes between "
                  "forward and backward.");
    }
  }
};

// Callbacks of an inner backward that wait for the outermost one. Unlike a thread_local, the slot follows autograd's
// work to other threads. Otherwise only mobile builds of libtorch use it.
struct Frame : c10::DebugInfoBase {
  std::mutex mutex;
  std::vector<std::function<void()>> waiting;

  void add(std::function<void()> f) {
    const std::lock_guard<std::mutex> lock(mutex);
    waiting.push_back(std::move(f));
  }
  void run() {
    std::vector<std::function<void()>> due;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      due.swap(waiting);
    }
    for (const auto& f : due) {
      f();
    }
  }
};

const auto kSlot = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

Frame* frame() {
  return dynamic_cast<Frame*>(c10::ThreadLocalDebugInfo::get(kSlot));
}

// Accumulates gradients into the leaves and the parameters.
void differentiate(const Tensors& outputs, const variable_list& grads) {
  torch::autograd::edge_list roots;
  variable_list root_grads;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (grads[i].defined()) {
      roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
      root_grads.push_back(grads[i]);
    }
  }
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (frame() != nullptr) {
    engine.execute(roots, root_grads, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
    return;
  }
  const auto outermost = std::make_shared<Frame>();
  engine.queue_callback([outermost] { outermost->run(); });
  const c10::DebugInfoGuard guard(kSlot, outermost);
  engine.execute(roots, root_grads, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

variable_list saved_inputs(const torch::autograd::AutogradContext& context) {
  try {
    return context.get_saved_variables();
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("modified by an inplace operation") == std::string_view::npos) {
      throw;
    }
    throw Error("recompute", "an input of a recomputed function was modified in place between forward and backward",
                "Backward needs the original: use the out-of-place operation, or clone the input first.");
  }
}

Tensors leaves_of(const variable_list& saved, const Record& record) {
  Tensors leaves;
  size_t next = 0;
  for (const bool defined : record.defined) {
    leaves.push_back(defined ? saved[next].detach() : at::Tensor());
    if (defined && record.requires_grad[next++]) {
      leaves.back().requires_grad_();
    }
  }
  return leaves;
}

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  // `start` gives the node an input that requires a gradient, even if only parameters inside f do.
  static variable_list forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<Record>& record,
                               at::TensorList inputs, const at::Tensor& /*start*/) {
    context->set_materialize_grads(false);
    context->save_for_backward(inputs.vec());
    context->saved_data["record"] = c10::IValue::make_capsule(record);
    return std::move(record->first_outputs);
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& grads) {
    const auto record = c10::static_intrusive_pointer_cast<Record>(context->saved_data["record"].toCapsule());
    variable_list results(record->requires_grad.size() + 2);
    if (at::GradMode::is_enabled()) {
      throw Error("recompute", "double backward (create_graph) through a recomputed function is not supported",
                  "Do not recompute this function: double backward needs its activations.");
    }
    if (std::none_of(grads.begin(), grads.end(), [](const at::Tensor& grad) { return grad.defined(); })) {
      return results;
    }
    const Tensors leaves = leaves_of(saved_inputs(*context), *record);
    Outputs outputs;
    {
      const RandomGuard random(record->random);
      const AutocastGuard autocast(record->autocast);
      const BufferGuard buffers(record->buffers);
      const at::AutoGradMode with_grad(true);
      outputs = sort(record->f(leaves), leaves);
    }
    record->check(outputs);
    differentiate(outputs.differentiable, grads);
    size_t result = 1;
    for (const at::Tensor& leaf : leaves) {
      if (leaf.defined()) {
        results[result++] = leaf.grad();
      }
    }
    return results;
  }
};

std::vector<uint32_t> versions(const Tensors& tensors) {
  std::vector<uint32_t> list;
  for (const at::Tensor& tensor : tensors) {
    list.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  }
  return list;
}

// Returns the tensor without its graph, which would keep the activations.
at::Tensor cut_off(at::Tensor output) {
  if (output.is_leaf() || output.is_view()) {
    return output.detach(); // a parameter must stay a parameter
  }
  return output.detach_();
}

} // namespace

Tensors run(const Function& f, const Tensors& inputs, const Options& options) {
  if (!at::GradMode::is_enabled()) {
    return f(inputs);
  }
  const auto record = c10::make_intrusive<Record>();
  record->f = f;
  record->autocast = AutocastState::present();
  record->buffers = options.buffers;
  if (options.preserve_rng_state) {
    record->random = RandomState::of(inputs);
  }
  Tensors defined;
  for (const at::Tensor& input : inputs) {
    record->defined.push_back(input.defined());
    if (input.defined()) {
      record->requires_grad.push_back(input.requires_grad());
      defined.push_back(input);
    }
  }
  Tensors outputs;
  Outputs sorted;
  {
    const Tensors leaves = leaves_of(defined, *record);
    const std::vector<uint32_t> before = versions(inputs);
    // Runs with gradients to see which outputs have one, and drops the graph at once. The peak of a step is the same,
    // because backward holds one function's activations anyway.
    const SavingScope nobody(nullptr); // this graph is dropped
    outputs = f(leaves);
    if (const std::vector<uint32_t> after = versions(inputs); after != before) {
      const auto first = std::mismatch(before.begin(), before.end(), after.begin()).first - before.begin();
      throw InputError(
          "recompute", concat("a recomputed function changed its input ", first, " in place"),
          "Backward calls it again on the same input: use the out-of-place operation, or clone the input first.");
    }
    sorted = sort(outputs, leaves);
  }
  for (at::Tensor& output : sorted.differentiable) {
    record->sizes.push_back(output.sizes().vec());
    record->types.push_back(output.scalar_type());
    record->first_outputs.push_back(cut_off(output));
  }
  record->sources = sorted.sources;
  variable_list wrapped;
  if (!sorted.differentiable.empty()) {
    wrapped = Recompute::apply(record, at::TensorList(defined), torch::empty({0}).requires_grad_());
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Source& source = sorted.sources[i];
    if (source.kind == Source::input) {
      outputs[i] = inputs[source.index];
    } else if (source.kind == Source::differentiable) {
      outputs[i] = wrapped[source.index];
    }
  }
  return outputs;
}

void queue_at_end(std::function<void()> f) {
  if (Frame* const outermost = frame()) {
    outermost->add(std::move(f));
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(f));
  }
}

} // namespace trireme::recompute
