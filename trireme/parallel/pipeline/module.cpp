#include <trireme/parallel/pipeline/module.h>

#include <trireme/activations/activations.h>
#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/base/notes.h>
#include <trireme/bucket/shared_memory.h>
#include <trireme/device/absent_memory.h>
#include <trireme/parallel/pipeline/message.h>
#include <trireme/parallel/pipeline/module_tree.h>
#include <trireme/recompute/recompute.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <set>

namespace trireme::pipeline {
namespace {

// Mixes the numbers, so that no layer draws what its neighbour draws for another micro-batch. The generator keeps 32 bits.
uint32_t seed_of(int64_t base, int64_t micro_batch, int64_t layer) {
  uint64_t mixed = 0;
  for (const int64_t part : {base, micro_batch, layer}) {
    mixed = mix64(mixed + static_cast<uint64_t>(part) + kMixStep);
  }
  return static_cast<uint32_t>(mixed);
}

} // namespace

PipelineModule::PipelineModule(LayerList layers, Loss loss, PipelineOptions options)
    : torch::nn::Module("PipelineModule"), layers_(std::move(layers)), loss_(std::move(loss)), options_(std::move(options)) {
  if (layers_.size() == 0) {
    throw InputError("pipeline", "the list of layers is empty");
  }
  if (options_.stages < 1 || options_.chunks < 1) {
    throw InputError("pipeline", concat("stages and chunks must be at least 1, got ", options_.stages, " and ", options_.chunks));
  }
  std::set<std::string> names;
  for (int64_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].tie() && !names.insert(name_of(i)).second) {
      throw InputError("pipeline", concat("two layers are named \"", name_of(i), "\"; layer ", i, " is the second"), "Give every layer a name of its own.");
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

void PipelineModule::configure(const PipelineKeys& keys) {
  if (stages_ != 0) {
    throw Error("pipeline", "a PipelineModule that is built cannot be configured", "initialize() builds the module itself.");
  }
  options_ = keys.over(options_);
}

// Measured costs differ from rank to rank, and so do the parameters of tensor ranks with parts of unequal size. The partition must not: the first stage of the first
// pipeline decides, or of each stage the first rank, which all have the same part.
void PipelineModule::choose_partition(const comm::Group& pipe, int micro_batches, const comm::Group& replicas) {
  const int parts = stages_ * options_.chunks;
  const bool measures = options_.bounds.empty() && (options_.partition == "profile" || options_.partition == "memory");
  if (!measures) {
    partition_ = make_partition(layers_, options_.partition, options_.bounds, parts, options_.allow_empty_stages);
    if (options_.bounds.empty() && options_.partition == "parameters") {
      at::Tensor bounds = torch::tensor(partition_.bounds, torch::kInt64);
      replicas.broadcast(bounds, 0, "bounds of stages").wait();
      partition_.bounds.assign(bounds.data_ptr<int64_t>(), bounds.data_ptr<int64_t>() + bounds.numel());
    }
    return;
  }
  LayerProfile measured;
  if (pipe.rank() == 0 && replicas.rank() == 0) {
    measured = profile_layers(layers_, sample_inputs_);
  }
  for (std::vector<double>* const cost : {&measured.seconds, &measured.parameter_bytes, &measured.activation_bytes}) {
    cost->resize(static_cast<size_t>(layers_.size()));
    at::Tensor costs = torch::tensor(*cost, torch::kFloat64);
    if (pipe.rank() == 0) {
      replicas.broadcast(costs, 0, "layer costs").wait();
    }
    pipe.broadcast(costs, 0, "layer costs").wait();
    cost->assign(costs.data_ptr<double>(), costs.data_ptr<double>() + costs.numel());
  }
  partition_ = options_.partition == "profile" ? balance_costs(measured.seconds, parts, options_.allow_empty_stages)
                                               : balance_costs_by_part(memory_by_part(measured, micro_batches), options_.allow_empty_stages);
}

// The earlier a part comes, the more of its micro-batches wait for their backward.
std::vector<std::vector<double>> PipelineModule::memory_by_part(const LayerProfile& measured, int micro_batches) const {
  const ScheduleShape shape{stages_, micro_batches > 0 ? micro_batches : stages_, options_.chunks};
  std::vector<std::vector<double>> costs(static_cast<size_t>(shape.virtual_stages()));
  for (int stage = 0; stage < stages_; ++stage) {
    const Program program = options_.custom_schedule ? options_.custom_schedule(shape, stage) : make_program(options_.schedule, shape, stage);
    const std::vector<int64_t> in_flight = most_in_flight(program, shape.chunks);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      costs[static_cast<size_t>(shape.virtual_stage(stage, chunk))] = measured.bytes(std::max<int64_t>(1, in_flight[static_cast<size_t>(chunk)]));
    }
  }
  return costs;
}

// Every rank has all of these modules, with its own values until here, and each stage trains its own copy: tensors shared by two stages would drift apart.
void PipelineModule::join_given_modules(const comm::Group& pipe) {
  struct First {
    int64_t layer;
    std::string name;
    at::Tensor tensor;
    bool on_several_stages;
  };
  bucket::NamedTensors all;
  std::vector<First> firsts;
  std::map<const void*, size_t> known;
  for (int64_t i = 0; i < layers_.size(); ++i) {
    const auto module = layers_[i].given_module();
    if (!module) {
      continue;
    }
    for (const auto& named : bucket::tensors_of(*module, name_of(i) + ".")) {
      const auto& [name, tensor] = named;
      const auto [at, fresh] = known.try_emplace(tensor.unsafeGetTensorImpl(), firsts.size());
      all.push_back(named);
      if (fresh) {
        firsts.push_back({i, name, tensor, false});
        continue;
      }
      First& first = firsts[at->second];
      saved_names_[name] = first.name;
      if (stage_of(first.layer) == stage_of(i)) {
        continue;
      }
      if (tensor.requires_grad()) {
        throw InputError("pipeline", concat("layers ", first.layer, " and ", i, " share \"", name, "\" and are on stages ", stage_of(first.layer), " and ", stage_of(i)),
                         "Make both with TiedLayerSpec and one key, or choose bounds that leave them on one stage.");
      }
      first.on_several_stages = true;
    }
  }
  bucket::refuse_shared_memory(all);
  const torch::NoGradGuard no_grad;
  for (const First& first : firsts) {
    if (first.on_several_stages) {
      at::Tensor whole = first.tensor.detach().contiguous();
      pipe.broadcast(whole, stage_of(first.layer), first.name).wait();
      first.tensor.detach().copy_(whole);
    }
  }
}

// Other stages train their own copies of these. Nobody shall save or use this rank's without a word, and it needs no memory for them.
void PipelineModule::drop_foreign_modules() {
  std::set<const void*> own;
  for (int64_t i = 0; i < layers_.size(); ++i) {
    const auto module = stage_of(i) == stage_ ? layers_[i].given_module() : nullptr;
    for (const auto& [name, tensor] : module ? bucket::tensors_of(*module) : bucket::NamedTensors()) {
      own.insert(tensor.unsafeGetTensorImpl());
    }
  }
  for (int64_t i = 0; i < layers_.size(); ++i) {
    const auto module = layers_[i].given_module();
    for (const auto& [name, tensor] : module ? bucket::tensors_of(*module, name_of(i) + ".") : bucket::NamedTensors()) {
      if (own.insert(tensor.unsafeGetTensorImpl()).second) {
        device::take_memory(tensor, concat("\"", name, "\" is on stage ", stage_of(i), " of the pipeline, and this rank is stage ", stage_,
                                           ": layer ", i, " (", layers_[i].type(), ") was not trained here. To save the model, save what Engine::gather_model() returns."));
      }
    }
  }
}

void PipelineModule::build(const comm::Group& pipe, int micro_batches, const comm::Group& replicas) {
  if (stages_ != 0) {
    throw Error("pipeline", "build() was called twice on one PipelineModule", "initialize() builds the module itself.");
  }
  stage_ = pipe.rank();
  stages_ = pipe.size();
  if (stages_ == 1) { // one after the other in any case
    options_.chunks = 1;
    options_.schedule = ScheduleKind::one_f_one_b;
    options_.custom_schedule = nullptr;
  }
  choose_partition(pipe, micro_batches, replicas);
  join_given_modules(pipe);
  drop_foreign_modules();
  for (int chunk = 0; chunk < options_.chunks; ++chunk) {
    chunks_.emplace_back();
    const size_t virtual_stage = static_cast<size_t>(chunk) * stages_ + stage_;
    for (int64_t i = partition_.bounds[virtual_stage]; i < partition_.bounds[virtual_stage + 1]; ++i) {
      build_layer(i, chunks_.back());
    }
  }
  std::erase_if(ties_, [](const TiedParameter& tied) { return tied.owners.size() == 1 && tied.copies.size() == 1; });
  // Stages visit the ties in one order, whatever order they built them in.
  std::sort(ties_.begin(), ties_.end(), [](const TiedParameter& a, const TiedParameter& b) { return a.name < b.name; });
}

std::map<std::string, std::vector<int>> PipelineModule::tie_owners() const {
  std::map<std::string, std::set<int>> owners;
  for (int64_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].tie()) {
      owners[layers_[i].tie()->key].insert(stage_of(i));
    }
  }
  std::map<std::string, std::vector<int>> spanning;
  for (const auto& [key, stages] : owners) {
    if (stages.size() > 1) {
      spanning[key] = {stages.begin(), stages.end()};
    }
  }
  return spanning;
}

void PipelineModule::build_layer(int64_t index, std::vector<Part>& chunk) {
  const Layer& layer = layers_[index];
  const bool shares_module = layer.tie() && layer.tie()->attributes.empty();
  if (shares_module && shared_.count(layer.tie()->key) != 0) {
    chunk.push_back({index, layer.share(shared_[layer.tie()->key]), keep_name(layer.type())});
    return;
  }
  int64_t first = index;
  if (layer.tie()) {
    for (first = 0; !layers_[first].tie() || layers_[first].tie()->key != layer.tie()->key; ++first) {
    }
  }
  if (options_.seed_layers) {
    torch::manual_seed(options_.base_seed + first);
  }
  const BuiltLayer built = layer.build();
  chunk.push_back({index, built, keep_name(layer.type())});
  if (!built.module) {
    return;
  }
  if (hooks_.built) {
    hooks_.built(*built.module);
  }
  // A further copy of a tied parameter needs its own name here; saved_name() gives the saved one.
  const std::string prefix = index == first ? name_of(index) : std::to_string(index);
  register_tensors(prefix, *built.module);
  if (layer.tie()) {
    add_ties(prefix, index, first, *built.module);
  }
  if (shares_module) {
    shared_[layer.tie()->key] = built.module;
  }
}

void PipelineModule::add_ties(const std::string& prefix, int64_t index, int64_t first, const torch::nn::Module& module) {
  const Tie& tie = *layers_[index].tie();
  std::set<int> owners;
  for (int64_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].tie() && layers_[i].tie()->key == tie.key) {
      owners.insert(stage_of(i));
    }
  }
  if (index != first && tie.attributes.empty()) {
    for (const auto& item : module.named_buffers()) {
      saved_names_[concat(prefix, '.', item.key())] = concat(name_of(first), '.', item.key());
    }
  }
  for (const auto& item : module.named_parameters()) {
    const bool tied = tie.attributes.empty() || std::find(tie.attributes.begin(), tie.attributes.end(), item.key()) != tie.attributes.end();
    if (!tied) {
      continue;
    }
    const std::string saved = concat(name_of(first), '.', item.key());
    if (index != first) {
      saved_names_[concat(prefix, '.', item.key())] = saved;
    }
    auto known = std::find_if(ties_.begin(), ties_.end(), [&](const TiedParameter& parameter) { return parameter.name == saved; });
    if (known == ties_.end()) {
      known = ties_.insert(ties_.end(), {tie.key, saved, {}, {owners.begin(), owners.end()}});
    }
    known->copies.push_back(item.value());
  }
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

void PipelineModule::register_tensors(const std::string& prefix, const torch::nn::Module& module) {
  // Layers of one stage that share a tensor use one name for it.
  const auto is_new = [&](const at::Tensor& tensor) {
    const auto [at, fresh] = registered_.try_emplace(tensor.unsafeGetTensorImpl(), chunks_.size());
    if (!fresh && at->second != chunks_.size()) {
      in_several_chunks_.push_back(tensor);
    }
    return fresh;
  };
  const auto place = [&](const std::string& key) {
    const std::string whole = prefix + "." + key;
    const size_t dot = whole.rfind('.');
    return std::pair<torch::nn::Module*, std::string>(&module_at(*this, whole.substr(0, dot)), whole.substr(dot + 1));
  };
  for (const auto& item : module.named_parameters()) {
    if (is_new(item.value())) {
      const auto [parent, name] = place(item.key());
      parent->register_parameter(name, item.value(), item.value().requires_grad());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (is_new(item.value())) {
      const auto [parent, name] = place(item.key());
      parent->register_buffer(name, item.value());
    }
  }
}

void PipelineModule::save(torch::serialize::OutputArchive& archive) const {
  if (stages_ > 1) {
    throw InputError("pipeline", concat("torch::save() of a model in ", stages_, " stages: this rank is stage ", stage_, " and has a part of its layers"),
                     "Save what Engine::gather_model() returns, on rank 0, or use Engine::save_checkpoint().");
  }
  Module::save(archive);
}

std::vector<std::string> PipelineModule::module_names() const {
  std::vector<std::string> names;
  for (const auto& chunk : chunks_) {
    for (const Part& part : chunk) {
      for (const auto& item : part.built.module ? part.built.module->named_modules(name_of(part.index)) : torch::OrderedDict<std::string, std::shared_ptr<Module>>()) {
        names.push_back(item.key());
      }
    }
  }
  return names;
}

void PipelineModule::train(bool on) {
  torch::nn::Module::train(on);
  for (const auto& chunk : chunks_) {
    for (const Part& part : chunk) {
      if (part.built.module) {
        part.built.module->train(on);
      }
    }
  }
}

std::vector<std::shared_ptr<torch::nn::Module>> PipelineModule::layer_modules() const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& chunk : chunks_) {
    for (const Part& part : chunk) {
      if (part.built.module && std::find(modules.begin(), modules.end(), part.built.module) == modules.end()) {
        modules.push_back(part.built.module);
      }
    }
  }
  return modules;
}

Tensors PipelineModule::call(const Part& part, const Tensors& inputs, int64_t micro_batch) const {
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
    outputs = part.built.forward(inputs);
    if (hooks_.after && part.built.module) {
      hooks_.after(*part.built.module, outputs);
    }
  } catch (const InputError& error) {
    throw InputError("pipeline", concat(where(), ": ", error.what()));
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw InputError("pipeline", concat(where(), " refuses its input ", pipeline::describe(inputs), ": ", error.what_without_backtrace()),
                     part.index == 0 ? "Compare it with what the data gives."
                                     : concat("Its input comes from layer ", part.index - 1, " (", layers_[part.index - 1].type(), ", stage ",
                                              stage_of(part.index - 1), ")."));
  }
  if (outputs.empty()) {
    throw InputError("pipeline", concat(where(), " returned nothing"), "A layer returns at least one tensor.");
  }
  return outputs;
}

Tensors PipelineModule::run(const std::vector<Part>& chunk, size_t first, size_t last, Tensors tensors, int64_t micro_batch) const {
  for (size_t i = first; i < last; ++i) {
    tensors = call(chunk[i], tensors, micro_batch);
  }
  return tensors;
}

Tensors PipelineModule::forward_chunk(int index, const Tensors& inputs, int64_t micro_batch) {
  const std::shared_ptr<void> guard = hooks_.around ? hooks_.around() : nullptr;
  const std::vector<Part>& chunk = chunks_[index];
  const auto recomputed = static_cast<size_t>(options_.activation_checkpoint_interval);
  if ((recomputed == 0 && !activations::active()) || !at::GradMode::is_enabled()) {
    return run(chunk, 0, chunk.size(), inputs, micro_batch);
  }
  const size_t interval = std::max<size_t>(1, recomputed);
  Tensors tensors = inputs;
  for (size_t first = 0; first < chunk.size(); first += interval) {
    const size_t last = std::min(chunk.size(), first + interval);
    activations::Part part{.key = &chunk[first], .type = layers_[chunk[first].index].type(), .place = chunk[first].index, .recomputes = recomputed > 0, .begins = first == 0};
    for (size_t i = first; i < last; ++i) {
      if (chunk[i].built.module) {
        recompute::append(part.recompute.buffers, chunk[i].built.module->buffers());
      }
    }
    tensors = activations::run(part, [&chunk, this, first, last, micro_batch](const Tensors& x) { return run(chunk, first, last, x, micro_batch); }, tensors);
  }
  return tensors;
}

Tensors PipelineModule::forward(const Tensors& inputs) {
  if (stages_ == 0) {
    build();
  }
  if (stages_ != 1) {
    throw InputError("pipeline", concat("forward() of a model in ", stages_, " stages"), "No rank has all of it: use Engine::train_batch and eval_batch.");
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
    throw InputError("pipeline", concat("there is no loss function, and the last layer's output is not a loss: ", pipeline::describe(outputs)),
                     "Give PipelineModule a loss.");
  }
  const std::shared_ptr<void> guard = hooks_.around ? hooks_.around() : nullptr;
  const at::Tensor value = loss_ ? loss_(outputs, targets) : outputs[0];
  if (!value.defined() || value.numel() != 1) {
    throw InputError("pipeline", "the loss function did not return one number", "Return the mean over the samples as a 0-dim tensor.");
  }
  return value;
}

Tensors PipelineModule::logits(const Tensors& outputs) const {
  return {outputs.begin() + (loss_ || outputs.empty() ? 0 : 1), outputs.end()};
}

std::string PipelineModule::describe() const {
  return pipeline::describe(partition_, layers_, stages_);
}

} // namespace trireme::pipeline
