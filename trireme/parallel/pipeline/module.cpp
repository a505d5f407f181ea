#include <trireme/parallel/pipeline/module.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/base/notes.h>
#include <trireme/memory/activations/activations.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/parallel/pipeline/message.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <set>

namespace trireme::pipeline {
namespace {

// Mixes the numbers, so that no layer draws the same as its neighbour for another micro-batch. The generator keeps 32
// bits.
uint32_t seed_of(int64_t base, int64_t micro_batch, int64_t layer) {
  uint64_t mixed = 0;
  for (const int64_t part : {base, micro_batch, layer}) {
    mixed = mix64(mixed + static_cast<uint64_t>(part) + kMixStep);
  }
  return static_cast<uint32_t>(mixed);
}

} // namespace

PipelineModule::PipelineModule(LayerList layers, Loss loss, PipelineOptions options)
    : torch::nn::Module("PipelineModule"),
      layers_(std::move(layers)),
      loss_(std::move(loss)),
      options_(std::move(options)) {
  if (layers_.size() == 0) {
    throw InputError("pipeline", "the list of layers is empty");
  }
  if (options_.stages < 1 || options_.chunks < 1) {
    throw InputError("pipeline",
                     concat("stages and chunks must be at least 1, got ", options_.stages, " and ", options_.chunks));
  }
  std::set<std::string> names;
  for (int64_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].tie() && !names.insert(name_of(i)).second) {
      throw InputError("pipeline", concat("two layers are named \"", name_of(i), "\"; layer ", i, " is the second"),
                       "Give every layer a different name.");
    }
  }
}

std::string PipelineModule::name_of(int64_t layer) const {
  return layers_[layer].name().value_or(std::to_string(layer));
}

int PipelineModule::stage_of(int64_t layer) const {
  const auto after = std::upper_bound(partition_.bounds.begin(), partition_.bounds.end(), layer);
  return static_cast<int>((after - partition_.bounds.begin() - 1) % stages_);
}

Tensors PipelineModule::late_parameters() const {
  Tensors late = in_several_chunks_;
  for (const TiedParameter& tied : ties_) {
    late.insert(late.end(), tied.copies.begin(), tied.copies.end());
  }
  for (const auto& [key, module] : shared_) {
    const Tensors parameters = module->parameters();
    late.insert(late.end(), parameters.begin(), parameters.end());
  }
  return late;
}

const std::string& PipelineModule::saved_name(const std::string& parameter) const {
  const auto found = saved_names_.find(parameter);
  return found == saved_names_.end() ? parameter : found->second;
}

void PipelineModule::save(torch::serialize::OutputArchive& archive) const {
  if (stages_ > 1) {
    throw InputError("pipeline",
                     concat("torch::save() of a model in ", stages_, " stages: this rank is stage ", stage_,
                            " and has a part of its layers"),
                     "Save what Engine::gather_model() returns, on rank 0, or use Engine::save_checkpoint().");
  }
  Module::save(archive);
}

std::vector<std::string> PipelineModule::module_names() const {
  std::vector<std::string> names;
  for (const auto& chunk : chunks_) {
    for (const OwnLayer& part : chunk) {
      for (const auto& item : part.built.module ? part.built.module->named_modules(name_of(part.index))
                                                : torch::OrderedDict<std::string, std::shared_ptr<Module>>()) {
        names.push_back(item.key());
      }
    }
  }
  return names;
}

void PipelineModule::train(bool on) {
  torch::nn::Module::train(on);
  for (const auto& chunk : chunks_) {
    for (const OwnLayer& part : chunk) {
      if (part.built.module) {
        part.built.module->train(on);
      }
    }
  }
}

std::vector<std::shared_ptr<torch::nn::Module>> PipelineModule::layer_modules() const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& chunk : chunks_) {
    for (const OwnLayer& part : chunk) {
      if (part.built.module && std::find(modules.begin(), modules.end(), part.built.module) == modules.end()) {
        modules.push_back(part.built.module);
      }
    }
  }
  return modules;
}

Tensors PipelineModule::call(const OwnLayer& part, const Tensors& inputs, int64_t micro_batch,
                             WithLoss* with_loss) const {
  const Note note("layer", part.index, part.type);
  if (options_.seed_layers) {
    torch::manual_seed(seed_of(options_.base_seed, micro_batch, part.index));
  }
  const auto where = [&] {
    return concat("layer ", part.index, " (", layers_[part.index].type(), ", stage ", stage_, " of ", stages_, ')');
  };
  Tensors outputs;
  try {
    if (hooks_.before && part.built.module) {
      hooks_.before(*part.built.module);
    }
    at::Tensor loss;
    if (with_loss != nullptr) {
      loss = loss_.with_last_layer()(part.built.module, inputs, with_loss->targets);
      with_loss->is_loss = loss.defined();
    }
    outputs = loss.defined() ? Tensors{loss} : part.built.forward(inputs);
    if (hooks_.after && part.built.module) {
      hooks_.after(*part.built.module, outputs);
    }
  } catch (const InputError& error) {
    throw InputError("pipeline", concat(where(), ": ", error.what()));
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw InputError(
        "pipeline",
        concat(where(), " rejects its input ", pipeline::describe(inputs), ": ", error.what_without_backtrace()),
        part.index == 0 ? "Compare it with the data's shape."
                        : concat("Its input comes from layer ", part.index - 1, " (", layers_[part.index - 1].type(),
                                 ", stage ", stage_of(part.index - 1), ")."));
  }
  if (outputs.empty()) {
    throw InputError("pipeline", concat(where(), " returned nothing"), "Return at least one tensor.");
  }
  return outputs;
}

Tensors PipelineModule::run(const std::vector<OwnLayer>& chunk, size_t first, size_t last, Tensors tensors,
                            int64_t micro_batch, const SharedWithLoss& with_loss) const {
  for (size_t i = first; i < last; ++i) {
    tensors = call(chunk[i], tensors, micro_batch, i + 1 == chunk.size() ? with_loss.get() : nullptr);
  }
  return tensors;
}

Tensors PipelineModule::forward_chunk(int chunk, const Tensors& inputs, int64_t micro_batch) {
  return run_chunk(chunk, inputs, micro_batch, nullptr);
}

at::Tensor PipelineModule::forward_to_loss(int chunk, const Tensors& inputs, int64_t micro_batch,
                                           const Tensors& targets) {
  // What such a loss keeps changes in backward, so it cannot be moved meanwhile.
  if (!loss_.with_last_layer() || activations::active()) {
    return loss(forward_chunk(chunk, inputs, micro_batch), targets);
  }
  const auto with_loss = std::make_shared<WithLoss>(WithLoss{targets});
  const Tensors outputs = run_chunk(chunk, inputs, micro_batch, with_loss);
  if (!with_loss->is_loss) {
    return loss(outputs, targets);
  }
  check_loss(outputs.front());
  return outputs.front();
}

Tensors PipelineModule::run_chunk(int index, const Tensors& inputs, int64_t micro_batch,
                                  const SharedWithLoss& with_loss) {
  const std::shared_ptr<void> guard = hooks_.around ? hooks_.around() : nullptr;
  const std::vector<OwnLayer>& chunk = chunks_[index];
  const auto recomputed = static_cast<size_t>(options_.activation_checkpoint_interval);
  if ((recomputed == 0 && !activations::active()) || !at::GradMode::is_enabled()) {
    return run(chunk, 0, chunk.size(), inputs, micro_batch, with_loss);
  }
  const size_t interval = std::max<size_t>(1, recomputed);
  Tensors tensors = inputs;
  for (size_t first = 0; first < chunk.size(); first += interval) {
    const size_t last = std::min(chunk.size(), first + interval);
    activations::ModelPart part{.key = &chunk[first],
                                .type = layers_[chunk[first].index].type(),
                                .place = chunk[first].index,
                                .recomputes = recomputed > 0,
                                .begins = first == 0};
    for (size_t i = first; i < last; ++i) {
      if (chunk[i].built.module) {
        recompute::append(part.recompute.buffers, chunk[i].built.module->buffers());
      }
    }
    tensors = activations::run(
        part,
        [&chunk, this, first, last, micro_batch, with_loss](const Tensors& x) {
          return run(chunk, first, last, x, micro_batch, with_loss);
        },
        tensors);
  }
  return tensors;
}

Tensors PipelineModule::forward(const Tensors& inputs) {
  if (stages_ == 0) {
    build();
  }
  if (stages_ != 1) {
    throw InputError("pipeline", concat("forward() of a model in ", stages_, " stages"),
                     "No rank has all layers: use Engine::train_batch and eval_batch.");
  }
  Tensors tensors = inputs;
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    tensors = forward_chunk(static_cast<int>(chunk), tensors, 0);
  }
  return tensors;
}

at::Tensor PipelineModule::forward(const at::Tensor& input) {
  return forward(Tensors{input}).at(0);
}

at::Tensor PipelineModule::loss(const Tensors& outputs, const Tensors& targets) const {
  if (!loss_ && (outputs.empty() || outputs[0].numel() != 1)) {
    throw InputError(
        "pipeline",
        concat("there is no loss function, and the last layer's output is not a loss: ", pipeline::describe(outputs)),
        "Give PipelineModule a loss.");
  }
  const std::shared_ptr<void> guard = hooks_.around ? hooks_.around() : nullptr;
  const at::Tensor value = loss_ ? loss_(outputs, targets) : outputs[0];
  check_loss(value);
  return value;
}

void PipelineModule::check_loss(const at::Tensor& value) {
  if (!value.defined() || value.numel() != 1) {
    throw InputError("pipeline", "the loss function did not return one number",
                     "Return the mean over the samples as a 0-dim tensor.");
  }
}

Tensors PipelineModule::logits(const Tensors& outputs) const {
  return {outputs.begin() + (loss_ || outputs.empty() ? 0 : 1), outputs.end()};
}

std::string PipelineModule::describe() const {
  return pipeline::describe(partition_, layers_, stages_);
}

} // namespace trireme::pipeline
