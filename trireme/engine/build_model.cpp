#include <trireme/engine/build_model.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/bucket/shared_memory.h>
#include <trireme/precision/cast.h>
#include <trireme/zero/gradient_scatter.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <set>

namespace trireme::engine {
namespace {

bool shards_parameters(const Engine::Impl& impl, const config::EngineConfig& config) {
  return config.zero.stage >= 3 && impl.group.size() > 1;
}

// Parameters in the type that is computed in; masters stay fp32 in the optimizer.
void lower(torch::nn::Module& module, const precision::PrecisionOptions& precision) {
  bucket::refuse_shared_memory(bucket::tensors_of(module));
  if (precision.compute != precision::Type::fp32) {
    precision::cast_module(module, precision.compute);
  }
}

// Layers are the units: each is sharded as soon as it is built.
void build_layers(Engine::Impl& impl, const config::EngineConfig& config, zero::ModelUnits& units) {
  pipeline::LayerHooks hooks;
  hooks.around = [&impl] { return impl.autocast_guard(); };
  hooks.built = [&impl](torch::nn::Module& layer) { lower(layer, impl.precision); };
  if (!shards_parameters(impl, config)) {
    impl.layers->set_hooks(hooks);
    impl.layers->build(impl.pipe, static_cast<int>(impl.batch.accumulation), impl.group);
    return;
  }
  if (impl.pipe.size() > 1) {
    throw InputError("engine", concat("ZeRO stage 3 with ", impl.pipe.size(), " pipeline stages"),
                     "Every micro-batch would gather every layer twice. Use \"stage\": 2 in the pipeline, or one stage (parallel.pipe 1).");
  }
  hooks.built = [&](torch::nn::Module& layer) {
    lower(layer, impl.precision);
    units.add(layer, std::make_unique<zero::EarlyShards>(layer, impl.group));
  };
  hooks.before = [&impl](torch::nn::Module& layer) { impl.coordinator->enter(layer); };
  hooks.after = [&impl](torch::nn::Module& layer, const pipeline::Tensors& outputs) {
    for (const at::Tensor& output : outputs) {
      impl.coordinator->gather_for_backward(layer, output);
    }
  };
  impl.layers->set_hooks(hooks);
  impl.layers->build(impl.pipe, static_cast<int>(impl.batch.accumulation), impl.group);
  hooks.built = nullptr; // `units` ends with initialize()
  impl.layers->set_hooks(hooks);
  if (!impl.layers->ties().empty()) {
    throw InputError("engine", concat("ZeRO stage 3 with layers that share some of their parameters (\"", impl.layers->ties().front().name, "\")"),
                     "Share the whole module (TiedLayerSpec without attributes()), or use \"stage\": 2.");
  }
}

void build_pipeline(Engine::Impl& impl, comm::World& world, const InitializeOptions& options, zero::ModelUnits& units) {
  impl.layers = options.pipeline;
  build_layers(impl, options.config, units);
  impl.model = impl.layers;
  impl.loss_function = [&impl](const data::Batch& batch) {
    const int64_t count = impl.micro_steps * impl.group.size() + impl.group.rank();
    return impl.layers->loss(impl.layers->forward_chunk(0, batch.inputs, count), batch.targets);
  };
  if (world.rank() == 0 && impl.pipe.size() > 1) {
    log::info(impl.layers->describe());
  }
  impl.ties = std::make_unique<pipeline::Ties>(impl.pipe, *impl.layers);
  impl.executor = std::make_unique<pipeline::Executor>(*impl.layers, impl.pipe, impl.group.rank(), impl.group.size());
}

// The trained parameters, those that are final late in front: flat buffers reverse the list, and buckets start in their order.
bucket::NamedTensors trained_parameters(const Engine::Impl& impl) {
  bucket::NamedTensors parameters = parallel::trainable_parameters(*impl.model, impl.pipe.size() > 1);
  if (impl.layers) {
    const pipeline::Tensors late = impl.layers->late_parameters();
    std::stable_partition(parameters.begin(), parameters.end(), [&](const auto& named) {
      return std::any_of(late.begin(), late.end(), [&](const at::Tensor& parameter) { return parameter.is_same(named.second); });
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

// Frozen parameters need no flat buffer but to be sharded.
bucket::NamedTensors frozen_in_units(const torch::nn::Module& model, const zero::ModelUnits& units) {
  bucket::NamedTensors found;
  for (const auto& item : model.named_parameters()) {
    const auto same = [&](const auto& known) { return known.second.is_same(item.value()); };
    if (!item.value().requires_grad() && units.unit_of(item.value()) != bucket::TensorInfo::kNoUnit && std::none_of(found.begin(), found.end(), same)) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

// Says so where stage 3 is no better than stage 2.
void warn_of_whole_parameters(const Engine::Impl& impl, const zero::ModelUnits& units, const config::EngineConfig& config) {
  int64_t whole = 0;
  for (const at::Tensor& parameter : impl.model->parameters()) {
    const bool small = parameter.numel() < config.zero.param_persistence_threshold;
    whole += !small && units.unit_of(parameter) == bucket::TensorInfo::kNoUnit ? parameter.numel() : 0;
  }
  if (whole > 0 && impl.everyone.rank() == 0) {
    log::warning("ZeRO stage 3: ", whole, " numbers of large parameters (", units.sharded_elements(),
                 " are sharded) belong to no unit and stay whole on every rank. Make their modules zero::Sharded, or the model a list of layers.");
  }
}

// What is added up over micro-batches needs the range of grad_accum_dtype; what is not goes as it travels.
at::ScalarType gradient_type(const Engine::Impl& impl) {
  return precision::scalar_type(impl.batch.accumulation > 1 ? impl.precision.grad_accumulation : impl.precision.communication_type());
}

} // namespace

zero::ModelUnits build_model(Engine::Impl& impl, comm::World& world, const InitializeOptions& options) {
  zero::ModelUnits units;
  if (options.pipeline) {
    build_pipeline(impl, world, options, units);
    return units;
  }
  lower(*impl.model, impl.precision);
  return zero::ModelUnits::of(*impl.model);
}

std::vector<bucket::FlatParameters*> flatten(Engine::Impl& impl, const config::EngineConfig& config, zero::ModelUnits& units) {
  const bool sharded = impl.group.size() > 1;
  bucket::FlatOptions sharding{impl.group.rank(), impl.group.size(), sharded && config.zero.stage >= 2, shards_parameters(impl, config),
                            [&](const at::Tensor& parameter) { return units.unit_of(parameter); }, gradient_type(impl)};
  if (sharding.shard_parameters) {
    units.choose(config.zero);
    warn_of_whole_parameters(impl, units, config);
  } else {
    units.make_whole();
  }
  // At the same place on every stage: where the order of additions depends on it (gloo's ring), copies of one parameter would drift apart.
  std::set<const void*> on_several_stages;
  if (impl.layers) {
    for (const pipeline::TiedParameter& tied : impl.layers->ties()) {
      for (const at::Tensor& copy : tied.copies) {
        if (tied.owners.size() > 1) {
          on_several_stages.insert(copy.unsafeGetTensorImpl());
        }
      }
    }
  }
  if (impl.layers) {
    sharding.placement_of = [&](const std::string& name, const at::Tensor&) {
      return bucket::Placement{.counts_in_norm = impl.layers->saved_name(name) == name};
    };
  }
  sharding.alone = [&](const at::Tensor& parameter) { return on_several_stages.count(parameter.unsafeGetTensorImpl()) != 0; };
  const auto make = [&](const bucket::NamedTensors& parameters) {
    return parallel::flatten(parameters, impl.group, config.data_parallel, impl.group.size(), sharding);
  };
  impl.buffers = make(trained_parameters(impl));
  std::vector<bucket::FlatParameters*> all = pointers(impl.buffers);
  if (sharding.shard_parameters) {
    impl.frozen = make(frozen_in_units(*impl.model, units));
    const auto frozen = pointers(impl.frozen);
    all.insert(all.end(), frozen.begin(), frozen.end());
  } else {
    units.drop_early_shards();
  }
  parallel::check_same_model(impl.buffers, impl.group);
  impl.coordinator = std::make_shared<zero::ParameterCoordinator>(all, impl.group, config.zero.prefetch_elements);
  if (sharding.shard_parameters) {
    units.move_into(all, impl.group, config.data_parallel.broadcast_at_start, impl.coordinator);
  }
  if (config.data_parallel.broadcast_at_start) {
    parallel::broadcast_parameters(impl.buffers, impl.group);
    parallel::broadcast_untrained(*impl.model, impl.group);
  }
  if (impl.ties) {
    impl.ties->broadcast_weights();
  }
  return pointers(impl.buffers);
}

parallel::Reducer::Reduce reduce_function(const Engine::Impl& impl, bool sharded) {
  const at::ScalarType travel = precision::scalar_type(impl.precision.communication_type());
  if (sharded) {
    return [travel](const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket) {
      return zero::scatter_gradients(group, buffer, bucket, travel);
    };
  }
  return [travel](const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket) {
    return parallel::Reducer::all_reduce_as(travel, group, buffer, bucket);
  };
}

} // namespace trireme::engine
