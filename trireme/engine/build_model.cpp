#include <trireme/engine/build_model.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/bucket/shared_memory.h>
#include <trireme/device/absent_memory.h>
#include <trireme/device/move.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/make_sync.h>
#include <trireme/engine/offload_room.h>
#include <trireme/engine/placements.h>
#include <trireme/engine/same_options.h>
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/precision/cast.h>
#include <trireme/zero/tiled_linear.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::engine {
namespace {

// Moves parameters to the device and casts them to the compute type; masters stay fp32 in the optimizer.
void move_and_cast(torch::nn::Module& module, const Parts& parts) {
  bucket::refuse_shared_memory(bucket::tensors_of(module));
  device::move(module, parts.device());
  if (parts.precision.compute != precision::Type::fp32) {
    precision::cast_module(module, parts.precision.compute);
  }
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad() && (item.value().scalar_type() == at::kDouble || item.value().is_complex())) {
      throw InputError("engine",
                       concat("parameter \"", item.key(), "\" is of type ", item.value().scalar_type(),
                              ", and an engine computes in fp32, bf16 or fp16"),
                       "Convert the model before: model->to(torch::kFloat32). DataParallel trains double.");
    }
  }
}

// Layers are the units: each is sharded as soon as it is built.
void build_layers(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units) {
  pipeline::LayerHooks hooks;
  hooks.around = [&parts] { return parts.forward_guard(); };
  hooks.built = [&parts](torch::nn::Module& layer) { move_and_cast(layer, parts); };
  if (!parts.shards_parameters) {
    parts.layers->set_hooks(hooks);
    parts.layers->build(parts.pipe, static_cast<int>(parts.batch.accumulation), parts.stage);
    return;
  }
  std::shared_ptr<bucket::StateStore> store;
  check_together(parts.everyone, [&] {
    store = options.state_store ? nullptr : make_building_store(options.config, parts.everyone.rank());
  });
  hooks.built = [&, store](torch::nn::Module& layer) {
    move_and_cast(layer, parts);
    units.add(layer, std::make_unique<zero::EarlyShards>(
                         layer, parts.group,
                         store ? store : std::shared_ptr<bucket::StateStore>(make_early_store(parts, options))));
  };
  hooks.before = [&parts](torch::nn::Module& layer) { parts.coordinator->enter(layer); };
  hooks.after = [&parts](torch::nn::Module& layer, const pipeline::Tensors& outputs) {
    for (const at::Tensor& output : outputs) {
      parts.coordinator->gather_for_backward(layer, output);
    }
  };
  hooks.schedule = [&parts](std::vector<int> computations) { parts.coordinator->begin(std::move(computations)); };
  hooks.computation = [&parts] { parts.coordinator->next_stretch(); };
  parts.layers->set_hooks(hooks);
  parts.layers->build(parts.pipe, static_cast<int>(parts.batch.accumulation), parts.stage);
  hooks.built = nullptr; // `units` ends with initialize()
  parts.layers->set_hooks(hooks);
  for (const pipeline::TiedParameter& tied : parts.layers->ties()) {
    if (tied.copies.size() > 1) {
      throw InputError(
          "engine",
          concat("ZeRO stage 3 with layers of one stage that share some of their parameters (\"", tied.name, "\")"),
          "Share the whole module (TiedLayerSpec without attributes()), or use \"stage\": 2.");
    }
  }
}

// Each stage would gather only its own layers, and the group of zero::Init waits for all ranks.
void refuse_early_shards_in_stages(const Parts& parts) {
  for (int64_t i = 0; i < parts.layers->layers().size() && parts.pipe.size() > 1; ++i) {
    const auto module = parts.layers->layers()[i].given_module();
    for (const at::Tensor& parameter : module ? module->parameters() : std::vector<at::Tensor>()) {
      if (!device::has_memory(parameter)) {
        throw InputError(
            "engine",
            concat("layer ", i,
                   " was made under zero::Init, or is on another stage of an earlier pipeline, and the pipeline has ",
                   parts.pipe.size(), " stages"),
            "Make the layers with LayerSpec: each stage builds its own, and at ZeRO stage 3 shards each as soon as it "
            "is built.");
      }
    }
  }
}

void build_pipeline(Parts& parts, const StepState& state, const InitializeOptions& options, zero::ModelUnits& units) {
  parts.layers = options.pipeline;
  refuse_early_shards_in_stages(parts);
  build_layers(parts, options, units);
  parts.model = parts.layers;
  parts.loss_function = [&parts, &state](const data::Batch& batch) {
    const int64_t count = state.micro_steps * parts.group.size() +
                          parts.group.rank(); // context ranks, who have other tokens, draw other numbers
    const pipeline::Tensors outputs = parts.layers->forward_chunk(0, batch.inputs, count);
    return LossAndLogits(parts.layers->loss(outputs, batch.targets), parts.layers->logits(outputs));
  };
  if (parts.everyone.rank() == 0 && parts.pipe.size() > 1) {
    log::info(parts.layers->describe());
  }
  parts.ties = std::make_unique<pipeline::Ties>(parts.pipe, *parts.layers);
  const int replica =
      parts.worker * parts.group.size() + parts.group.rank(); // a worker has masks of its own, as a rank has
  const int replicas = parts.workers * parts.group.size();
  parts.executor = std::make_unique<pipeline::Executor>(*parts.layers, parts.pipe, replica, replicas, parts.device());
}

// A list of layers registers the tensors of its modules, not the modules.
std::vector<const torch::nn::Module*> modules_of(const Parts& parts) {
  std::vector<const torch::nn::Module*> found = {parts.model.get()};
  if (parts.layers) {
    for (const auto& layer : parts.layers->layer_modules()) {
      found.push_back(layer.get());
    }
  }
  return found;
}

// Lists the trained parameters, those that are final late first: flat buffers reverse the list, and buckets start in
// that order.
bucket::NamedTensors trained_parameters(const Parts& parts) {
  bucket::NamedTensors parameters = parallel::trainable_parameters(*parts.model, parts.pipe.size() > 1);
  if (parts.layers) {
    const pipeline::Tensors late = parts.layers->late_parameters();
    std::stable_partition(parameters.begin(), parameters.end(), [&](const auto& named) {
      return std::any_of(late.begin(), late.end(),
                         [&](const at::Tensor& parameter) { return parameter.is_same(named.second); });
    });
  }
  return parameters;
}

std::vector<bucket::FlatParameters*> pointers(const parallel::FlatBuffers& buffers) {
  std::vector<bucket::FlatParameters*> found;
  for (const auto& buffer : buffers) {
    found.push_back(buffer.get());
  }
  return found;
}

// Frozen parameters need a flat buffer only to be sharded.
bucket::NamedTensors frozen_in_units(const torch::nn::Module& model, const zero::ModelUnits& units) {
  bucket::NamedTensors found;
  for (const auto& item : model.named_parameters()) {
    const auto same = [&](const auto& known) { return known.second.is_same(item.value()); };
    if (!item.value().requires_grad() && units.unit_of(item.value()) != bucket::TensorInfo::kNoUnit &&
        std::none_of(found.begin(), found.end(), same)) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

// zero::Init has made the first rank's values those of all data ranks.
void refuse_early_shards_of_some_ranks(const torch::nn::Module& model, const InitializeOptions& options) {
  for (const auto& item : model.named_parameters()) {
    if (options.placement && !device::has_memory(item.value()) &&
        options.placement(item.key(), item.value()).reduce_group != 0) {
      throw InputError("engine",
                       concat("parameter \"", item.key(),
                              "\" has a reduce_group of its own, and zero::Init has sharded it among all data ranks"),
                       "Build its module after zero::Init has ended.");
    }
  }
}

// Warns if stage 3 is no better than stage 2.
void warn_of_whole_parameters(const Parts& parts, const zero::ModelUnits& units, const config::EngineConfig& config) {
  int64_t whole = 0;
  for (const at::Tensor& parameter : parts.model->parameters()) {
    const bool small = parameter.numel() < config.zero.param_persistence_threshold;
    whole += !small && units.unit_of(parameter) == bucket::TensorInfo::kNoUnit ? parameter.numel() : 0;
  }
  if (whole > 0 && parts.everyone.rank() == 0) {
    log::warning("ZeRO stage 3 shards ", units.sharded_elements(), " elements of parameters. ", whole,
                 " more are in modules that are not zero::Sharded and stay whole on every rank. Make their modules "
                 "zero::Sharded, or the model a list of layers.");
  }
}

// Makes `values` of the buffer those of the first rank: of its reduce group, and of the tensor ranks where each has
// them whole.
void agree_on(const Parts& parts, const bucket::FlatParameters& buffer, const at::Tensor& values) {
  parts.sync->groups().of(buffer).broadcast(values, 0, "parameters").wait();
  if (parts.tensor.size() > 1 && !parts.whole.is_sum &&
      parts.whole.has(buffer.reduce_group())) { // else the reduce group has done it
    parts.tensor.broadcast(values, 0, "parameters").wait();
  }
}

// The same among the tensor ranks for what is not trained: a frozen parameter, which lies in a flat buffer with split
// ones or in none, or a module buffer.
void agree_on_untrained(const Parts& parts, const at::Tensor& tensor) {
  if (!tensor.requires_grad() && parts.tensor.size() > 1 && parts.split.count(tensor.unsafeGetTensorImpl()) == 0 &&
      device::has_memory(tensor)) {
    at::Tensor values = tensor.detach().contiguous();
    parts.tensor.broadcast(values, 0, "frozen parameter or module buffer").wait();
    tensor.detach().copy_(values);
  }
}

// Of a bucket that is sharded afterwards.
void agree_on_bucket(const Parts& parts, bucket::FlatParameters& buffer, int64_t b) {
  const torch::NoGradGuard no_grad;
  agree_on(parts, buffer, buffer.bucket_data(b));
  const bucket::Bucket& bucket = buffer.layout().buckets()[b];
  for (int64_t slot = bucket.first_slot; slot < bucket.last_slot; ++slot) {
    agree_on_untrained(parts, buffer.parameter(buffer.layout().slots()[slot].tensor));
  }
}

// Of everything else.
void agree_on_whole(const Parts& parts) {
  const torch::NoGradGuard no_grad;
  for (const auto& buffer : parts.buffers) {
    if (!buffer->parameters_are_sharded()) {
      agree_on(parts, *buffer, buffer->flat_data());
    }
  }
  parallel::broadcast_untrained(*parts.model, parts.group);
  for (const auto& tensors : {parts.model->parameters(), parts.model->buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      agree_on_untrained(parts, tensor);
    }
  }
}

// At least so much.
ShardBytes bytes_of_shards(const Parts& parts, const zero::ModelUnits& units, const bucket::FlatOptions& sharding,
                           const offload::ParameterOptions& parameters) {
  const auto type_bytes = static_cast<int64_t>(c10::elementSize(precision::scalar_type(parts.precision.compute)));
  ShardBytes bytes;
  bytes.parameters =
      std::max<int64_t>(0, units.sharded_elements() / sharding.size - parameters.max_in_cpu) * type_bytes;
  if (sharding.gradient_store) {
    for (const auto& [name, parameter] : trained_parameters(parts)) {
      bytes.gradients +=
          parameter.numel() * static_cast<int64_t>(c10::elementSize(*sharding.gradient_type)) / sharding.size;
    }
  }
  return bytes;
}

} // namespace

zero::ModelUnits build_model(Parts& parts, const StepState& state, const InitializeOptions& options) {
  zero::ModelUnits units;
  parts.shards_parameters = shards_parameters(options.config, parts.group.size());
  if (options.pipeline) {
    build_pipeline(parts, state, options, units);
    return units;
  }
  move_and_cast(*parts.model, parts);
  return zero::ModelUnits::of(*parts.model);
}

std::vector<bucket::FlatParameters*> flatten(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units) {
  const config::EngineConfig& config = options.config;
  bucket::FlatOptions sharding{.rank = 0, .size = 1};
  if (!parts.sync->ever_alone()) {
    sharding.rank = parts.sync->step_group().rank();
    sharding.size = parts.sync->groups().largest();
  }
  sharding.shard_gradients = shards_gradients(parts, config);
  sharding.shard_parameters = parts.shards_parameters;
  sharding.unit_of = [&](const at::Tensor& parameter) { return units.unit_of(parameter); };
  sharding.gradient_type = precision::scalar_type(parts.precision.gradient_type(parts.batch.accumulation));
  for (const torch::nn::Module* module : modules_of(parts)) {
    parts.split.merge(tensor::placements_of(*module));
    parts.tiles.merge(zero::placements_of_tiles(*module));
  }
  refuse_early_shards_of_some_ranks(*parts.model, options);
  if (sharding.shard_parameters) {
    sharding.parameter_store = make_parameter_store(parts, options);
    sharding.gradient_store = parts.device().is_cpu() ? make_gradient_store(parts, options)
                                                      : nullptr; // of a device they go by way of its host
    units.choose(config.zero, parts.tensor);
    check_room_for_shards(parts, options, bytes_of_shards(parts, units, sharding, config.offload.parameters));
    warn_of_whole_parameters(parts, units, config);
  } else {
    units.make_whole();
  }
  // Puts copies at the same offset on every stage: gloo's ring adds in an order that depends on the offset, and copies
  // would drift apart.
  std::set<const void*> on_several_stages;
  if (parts.layers) {
    for (const pipeline::TiedParameter& tied : parts.layers->ties()) {
      for (const at::Tensor& copy : tied.copies) {
        if (tied.owners.size() > 1) {
          on_several_stages.insert(copy.unsafeGetTensorImpl());
        }
      }
    }
  }
  const std::map<const void*, bucket::Placement> placements = merged_placements(parts, options);
  sharding.placement_of = [&](const std::string& name, const at::Tensor& parameter) {
    bucket::Placement placement = placements.at(parameter.unsafeGetTensorImpl());
    if (parts.layers && parts.layers->saved_name(name) != name) {
      placement.counts_in_norm = false;
    }
    return placement;
  };
  sharding.alone = [&](const at::Tensor& parameter) {
    return on_several_stages.count(parameter.unsafeGetTensorImpl()) != 0;
  };
  const auto make = [&](const bucket::NamedTensors& parameters) {
    return parallel::flatten(parameters, parts.sync->groups(), config.data_parallel, /*divisible=*/true, sharding);
  };
  parts.buffers = make(trained_parameters(parts));
  std::vector<bucket::FlatParameters*> all = pointers(parts.buffers);
  if (sharding.shard_parameters) {
    parts.frozen = make(frozen_in_units(*parts.model, units));
    const auto frozen = pointers(parts.frozen);
    all.insert(all.end(), frozen.begin(), frozen.end());
  } else {
    units.drop_early_shards();
  }
  parallel::check_same_model(parts.buffers, parts.sync->groups());
  parts.coordinator = std::make_shared<zero::ParameterCoordinator>(all, parts.sync->groups(),
                                                                   config.zero.prefetch_elements, tensor::is_exchange);
  if (sharding.shard_parameters) {
    const auto agree = [&](bucket::FlatParameters& buffer, int64_t b) { agree_on_bucket(parts, buffer, b); };
    units.move_into(all, config.data_parallel.broadcast_at_start ? agree : zero::ModelUnits::Agree(),
                    parts.coordinator);
    parts.coordinator->keep(config.zero.live_elements(parts.coordinator->unit_elements(), parts.pipe.size()));
    if (!options.state_store && config.offload.parameters.place == offload::Place::nvme) {
      const int64_t in_use = parts.device().is_cpu() ? 1 : 2; // a device still copies the one before
      parts.coordinator->read_ahead(std::max<int64_t>(2, config.offload.parameters.buffer_count - in_use));
    }
  }
  if (config.data_parallel.broadcast_at_start) {
    agree_on_whole(parts);
  }
  if (parts.ties) {
    pipeline::Tensors tied;
    for (const pipeline::TiedParameter& parameter : parts.layers->ties()) {
      tied.insert(tied.end(), parameter.copies.begin(), parameter.copies.end());
    }
    parts.coordinator->rewrite(tied, [&] { parts.ties->broadcast_weights(); });
  }
  return pointers(parts.buffers);
}

} // namespace trireme::engine
