// Builds the layers of a stage: partition, modules that the program gave, modules that are built, shared
// parameters.
#include <trireme/parallel/pipeline/module.h>

#include <trireme/base/error.h>
#include <trireme/base/notes.h>
#include <trireme/device/absent_memory.h>
#include <trireme/parallel/pipeline/module_tree.h>
#include <trireme/shards/bucket/shared_memory.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <set>

namespace trireme::pipeline {

void PipelineModule::configure(const PipelineKeys& keys) {
  if (stages_ != 0) {
    throw Error("pipeline", "a PipelineModule cannot be configured after build()",
                "initialize() builds the module itself.");
  }
  options_ = keys.over(options_);
}

// Costs differ between ranks if they are measured, and parameters between tensor ranks with parts of unequal size, but
// the partition must not. Measured: the first stage of the first pipeline decides. "parameters": the first rank of each
// stage decides; all these have the same part.
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
  partition_ = options_.partition == "profile"
                   ? balance_costs(measured.seconds, parts, options_.allow_empty_stages)
                   : balance_costs_by_part(memory_by_part(measured, micro_batches), options_.allow_empty_stages);
}

// The earlier a part, the more of its micro-batches wait for their backward.
std::vector<std::vector<double>> PipelineModule::memory_by_part(const LayerProfile& measured, int micro_batches) const {
  const ScheduleShape shape{stages_, micro_batches > 0 ? micro_batches : stages_, options_.chunks};
  std::vector<std::vector<double>> costs(static_cast<size_t>(shape.virtual_stages()));
  for (int stage = 0; stage < stages_; ++stage) {
    const Program program = options_.custom_schedule ? options_.custom_schedule(shape, stage)
                                                     : make_program(options_.schedule, shape, stage);
    const std::vector<int64_t> in_flight = most_in_flight(program, shape.chunks);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      costs[static_cast<size_t>(shape.virtual_stage(stage, chunk))] =
          measured.bytes(std::max<int64_t>(1, in_flight[static_cast<size_t>(chunk)]));
    }
  }
  return costs;
}

// Every rank has all of these modules, so far with its own values, and each stage trains its own copy: tensors shared
// by two stages would diverge.
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
        throw InputError("pipeline",
                         concat("layers ", first.layer, " and ", i, " share \"", name, "\" and are on stages ",
                                stage_of(first.layer), " and ", stage_of(i)),
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

// Other stages train their own copies of these. Frees this rank's memory for them, and makes any use or save of them
// throw.
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
        device::take_memory(
            tensor, concat("\"", name, "\" is on stage ", stage_of(i), " of the pipeline, and this rank is stage ",
                           stage_, ": layer ", i, " (", layers_[i].type(),
                           ") was not trained here. To save the model, save what Engine::gather_model() returns."));
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
  // Stages process ties in one order, whatever order they built them in.
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

void PipelineModule::build_layer(int64_t index, std::vector<OwnLayer>& chunk) {
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
  // A further copy of a tied parameter needs a different name in the module; saved_name() maps it to the saved one.
  const std::string prefix = index == first ? name_of(index) : std::to_string(index);
  register_tensors(prefix, *built.module);
  if (layer.tie()) {
    add_ties(prefix, index, first, *built.module);
  }
  if (shares_module) {
    shared_[layer.tie()->key] = built.module;
  }
}

void PipelineModule::add_ties(const std::string& prefix, int64_t index, int64_t first,
                              const torch::nn::Module& module) {
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
    const bool tied = tie.attributes.empty() ||
                      std::find(tie.attributes.begin(), tie.attributes.end(), item.key()) != tie.attributes.end();
    if (!tied) {
      continue;
    }
    const std::string saved = concat(name_of(first), '.', item.key());
    if (index != first) {
      saved_names_[concat(prefix, '.', item.key())] = saved;
    }
    auto known = std::find_if(ties_.begin(), ties_.end(),
                              [&](const TiedParameter& parameter) { return parameter.name == saved; });
    if (known == ties_.end()) {
      known = ties_.insert(ties_.end(), {tie.key, saved, {}, {owners.begin(), owners.end()}});
    }
    known->copies.push_back(item.value());
  }
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

} // namespace trireme::pipeline
