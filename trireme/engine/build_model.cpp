#include <trireme/engine/build_model.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/device/absent_memory.h>
#include <trireme/device/move.h>
#include <trireme/engine/build_agreement.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/multiply_in_fp8.h>
#include <trireme/engine/offload_room.h>
#include <trireme/engine/placements.h>
#include <trireme/engine/same_options.h>
#include <trireme/parallel/tensor/split.h>
#include <trireme/precision/cast.h>
#include <trireme/shards/bucket/shared_memory.h>
#include <trireme/shards/data_parallel/sync_batch_norm.h>
#include <trireme/shards/zero/tiled_linear.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::engine {
namespace {

// Casts parameters to the compute type and moves them to the device, unless flat buffers take them from the host;
// masters stay fp32 in the optimizer.
void cast_and_move(torch::nn::Module& module, const Parts& parts) {
  bucket::refuse_shared_memory(bucket::tensors_of(module));
  if (parts.settings.precision.compute != precision::Type::fp32) {
    precision::cast_module(module, parts.settings.precision.compute);
  }
  if (parts.settings.builds_on_host) {
    device::move_buffers(module, parts.device());
  } else {
    device::move(module, parts.device());
  }
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad() && (item.value().scalar_type() == at::kDouble || item.value().is_complex())) {
      throw InputError("engine",
                       concat("parameter \"", item.key(), "\" is of type ", item.value().scalar_type(),
                              ", but an engine computes in fp32, bf16 or fp16"),
                       "Convert the model first: model->to(torch::kFloat32). To train in double, use DataParallel.");
    }
  }
}

// Each layer is a unit, sharded as soon as it is built.
void build_layers(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units) {
  pipeline::LayerHooks hooks;
  hooks.around = [&parts] { return parts.forward_guard(); };
  hooks.built = [&parts](torch::nn::Module& layer) { cast_and_move(layer, parts); };
  if (!parts.settings.sharding.parameters) {
    parts.model.layers->set_hooks(hooks);
    parts.model.layers->build(parts.ranks.pipe, static_cast<int>(parts.settings.batch.accumulation), parts.ranks.stage);
    return;
  }
  std::shared_ptr<bucket::StateStore> store;
  check_together(parts.ranks.everyone, [&] {
    store = options.state_store ? nullptr : make_building_store(options.config, parts.ranks.everyone.rank());
  });
  hooks.built = [&, store](torch::nn::Module& layer) {
    cast_and_move(layer, parts);
    units.add(layer, std::make_unique<zero::EarlyShards>(
                         layer, parts.ranks.group,
                         store ? store : std::shared_ptr<bucket::StateStore>(make_early_store(parts, options))));
  };
  hooks.before = [&parts](torch::nn::Module& layer) { parts.buffers.coordinator->enter(layer); };
  hooks.after = [&parts](torch::nn::Module& layer, const pipeline::Tensors& outputs) {
    for (const at::Tensor& output : outputs) {
      parts.buffers.coordinator->gather_for_backward(layer, output);
    }
  };
  hooks.schedule = [&parts](std::vector<int> computations) {
    parts.buffers.coordinator->begin(std::move(computations));
  };
  hooks.computation = [&parts] { parts.buffers.coordinator->next_stretch(); };
  parts.model.layers->set_hooks(hooks);
  parts.model.layers->build(parts.ranks.pipe, static_cast<int>(parts.settings.batch.accumulation), parts.ranks.stage);
  hooks.built = nullptr; // `units` does not outlive initialize()
  parts.model.layers->set_hooks(hooks);
  for (const pipeline::TiedParameter& tied : parts.model.layers->ties()) {
    if (tied.copies.size() > 1) {
      throw InputError(
          "engine",
          concat("ZeRO stage 3 with layers of one stage that share some of their parameters (\"", tied.name, "\")"),
          "Share the whole module (TiedLayerSpec without attributes()), or use \"stage\": 2.");
    }
  }
}

// A stage would gather only its own layers, but the group of zero::Init waits for all ranks.
void refuse_early_shards_in_stages(const Parts& parts) {
  for (int64_t i = 0; i < parts.model.layers->layers().size() && parts.ranks.pipe.size() > 1; ++i) {
    const auto module = parts.model.layers->layers()[i].given_module();
    for (const at::Tensor& parameter : module ? module->parameters() : std::vector<at::Tensor>()) {
      if (!device::has_memory(parameter)) {
        throw InputError(
            "engine",
            concat("layer ", i,
                   " was made under zero::Init, or is on another stage of an earlier pipeline, and the pipeline has ",
                   parts.ranks.pipe.size(), " stages"),
            "Make the layers with LayerSpec: each stage builds its own, and at ZeRO stage 3 shards each as soon as it "
            "is built.");
      }
    }
  }
}

void build_pipeline(Parts& parts, const StepState& state, const InitializeOptions& options, zero::ModelUnits& units) {
  parts.model.layers = options.pipeline;
  refuse_early_shards_in_stages(parts);
  build_layers(parts, options, units);
  parts.model.module = parts.model.layers;
  parts.model.loss_function = [&parts, &state](const data::Batch& batch) {
    const int64_t count = state.micro_steps * parts.ranks.group.size() +
                          parts.ranks.group.rank(); // context ranks have other tokens and draw other numbers
    if (at::GradMode::is_enabled()) {
      return LossAndLogits(parts.model.layers->forward_to_loss(0, batch.inputs, count, batch.targets));
    }
    const pipeline::Tensors outputs = parts.model.layers->forward_chunk(0, batch.inputs, count);
    return LossAndLogits(parts.model.layers->loss(outputs, batch.targets), parts.model.layers->logits(outputs));
  };
  if (parts.ranks.everyone.rank() == 0 && parts.ranks.pipe.size() > 1) {
    log::info(parts.model.layers->describe());
  }
  parts.model.ties = std::make_unique<pipeline::Ties>(parts.ranks.pipe, *parts.model.layers);
  const int replica = parts.ranks.worker * parts.ranks.group.size() +
                      parts.ranks.group.rank(); // each worker draws masks of its own, as each rank does
  const int replicas = parts.ranks.workers * parts.ranks.group.size();
  parts.model.executor =
      std::make_unique<pipeline::Executor>(*parts.model.layers, parts.ranks.pipe, replica, replicas, parts.device());
}

// A list of layers registers the tensors of its modules, not the modules.
std::vector<const torch::nn::Module*> modules_of(const Parts& parts) {
  std::vector<const torch::nn::Module*> found = {parts.model.module.get()};
  if (parts.model.layers) {
    for (const auto& layer : parts.model.layers->layer_modules()) {
      found.push_back(layer.get());
    }
  }
  return found;
}

// The module buffers that all tensor ranks have.
std::vector<at::Tensor> whole_buffers(const Parts& parts) {
  std::vector<at::Tensor> whole = parts.model.module->buffers();
  std::erase_if(whole,
                [&](const at::Tensor& buffer) { return parts.model.split.count(buffer.unsafeGetTensorImpl()) != 0; });
  return whole;
}

void synchronise_norms(Parts& parts, const comm::Group& ranks) {
  std::vector<torch::nn::Module*> modules;
  if (parts.model.layers) {
    for (const auto& layer : parts.model.layers->layer_modules()) {
      modules.push_back(layer.get());
    }
  } else {
    modules.push_back(parts.model.module.get());
  }
  check_together(parts.ranks.everyone, [&] { parts.model.synced_norms.emplace(modules, ranks); });
  parts.model.synced_norms->group().open(parts.device());
  if (parts.model.synced_norms->size() == 0 && ranks.size() > 1 && parts.ranks.pipe.size() == 1 &&
      parts.ranks.everyone.rank() == 0) {
    log::warning("\"sync_batch_norm\": the model has no BatchNorm layers");
  }
}

// Claims the model before changing anything of it, and splits it if configured.
void take_model(Parts& parts, const InitializeOptions& options) {
  parts.model.module = options.model;
  parts.model.loss_function = options.loss;
  if (!options.model) {
    return;
  }
  check_together(parts.ranks.everyone, [&] { parts.model.claim.emplace(*options.model); });
  if (options.config.tensor_parallel.size > 1) {
    parts.model.ordinary.emplace(
        tensor::SplitModel::split(*options.model, options.config.tensor_parallel.rules, parts.ranks.tensor));
    parts.model.split = parts.model.ordinary->placements();
    if (parts.ranks.everyone.rank() == 0) {
      log::info("split over ", parts.ranks.tensor.size(), " tensor ranks:\n", parts.model.ordinary->describe());
    }
  }
}

} // namespace

zero::ModelUnits build_model(Parts& parts, const StepState& state, const InitializeOptions& options) {
  take_model(parts, options);
  zero::ModelUnits units;
  if (options.pipeline) {
    build_pipeline(parts, state, options, units);
    check_together(parts.ranks.everyone, [&] { parts.model.claim.emplace(*parts.model.module); });
  } else {
    cast_and_move(*parts.model.module, parts);
    units = zero::ModelUnits::of(*parts.model.module);
  }
  for (const torch::nn::Module* module : modules_of(parts)) {
    parts.model.split.merge(tensor::placements_of(*module));
    parts.model.tiles.merge(zero::placements_of_tiles(*module));
  }
  if (options.config.data_parallel.broadcast_buffers) {
    parts.model.module_buffers.emplace_back(parts.model.module->buffers(), parts.ranks.group);
    parts.model.module_buffers.emplace_back(whole_buffers(parts), parts.ranks.tensor);
  }
  multiply_in_fp8(parts);
  parallel::name_norms(*parts.model.module);
  if (options.config.data_parallel.sync_batch_norm) {
    synchronise_norms(parts, options.sequence_parallel ? parts.ranks.stage : parts.ranks.group);
  }
  return units;
}

} // namespace trireme::engine
