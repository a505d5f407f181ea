#include <trireme/engine/initialize.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/mesh/mesh.h>
#include <trireme/precision/cast.h>
#include <trireme/zero/gradient_scatter.h>
#include <trireme/zero/model_units.h>

#include <torch/torch.h>

#include <set>

namespace trireme::engine {

config::EngineConfig read_config(const std::filesystem::path& file) {
  return config::read_deepspeed(JsonNode::parse_file(file));
}

namespace {

// What the configuration wants said before the first step.
void announce(const config::EngineConfig& config) {
  if (config.log_level) {
    log::set_level(log::parse_level(*config.log_level));
  }
  for (const std::string& note : config.notes) {
    log::info(note);
  }
  if (config.dump_state) {
    log::info(config::to_json(config).dump(2));
  }
}

// What each stage needs of a sample.
data::Part part_for(const Engine::Impl& engine) {
  if (!engine.executor || engine.pipe.size() == 1) {
    return data::Part::all;
  }
  return engine.executor->loads_inputs() ? data::Part::inputs : data::Part::targets;
}

void check_options(const InitializeOptions& options) {
  if (!options.pipeline && (!options.model || !options.loss)) {
    throw InputError("engine", "initialize() needs a model and a loss function, or a pipeline");
  }
  if (options.pipeline && (options.model || options.loss)) {
    throw InputError("engine", "initialize() got both a model and a pipeline", "A PipelineModule has its layers and its loss: leave model and loss away.");
  }
  if (!options.config.optimizer) {
    throw InputError("engine", "the configuration has no \"optimizer\"", R"(Add "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}.)");
  }
}

bool shards_parameters(const Engine::Impl& impl, const config::EngineConfig& config) {
  return config.zero.stage >= 3 && impl.group.size() > 1;
}

// Parameters in the type that is computed in; masters stay fp32 in the optimizer.
void lower(torch::nn::Module& module, const precision::PrecisionOptions& precision) {
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
    impl.layers->build(impl.pipe);
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
  impl.layers->build(impl.pipe);
  hooks.built = nullptr; // `units` ends with initialize()
  impl.layers->set_hooks(hooks);
  if (!impl.layers->ties().empty()) {
    throw InputError("engine", concat("ZeRO stage 3 with layers that share some of their parameters (\"", impl.layers->ties().front().name, "\")"),
                     "Share the whole module (TiedLayerSpec without attributes()), or use \"stage\": 2.");
  }
}

void build_pipeline(Engine::Impl& impl, comm::World& world, const mesh::Mesh& mesh, const InitializeOptions& options, zero::ModelUnits& units) {
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
  impl.ties = std::make_unique<pipeline::Ties>(world, mesh, *impl.layers);
  impl.executor = std::make_unique<pipeline::Executor>(*impl.layers, impl.pipe, impl.group.rank(), impl.group.size());
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

std::vector<bucket::FlatParameters*> flatten(Engine::Impl& impl, const config::EngineConfig& config, zero::ModelUnits& units) {
  const bool is_stage = impl.pipe.size() > 1;
  const bool sharded = impl.group.size() > 1;
  bucket::FlatOptions sharding{impl.group.rank(), impl.group.size(), sharded && config.zero.stage >= 2, shards_parameters(impl, config),
                            [&](const at::Tensor& parameter) { return units.unit_of(parameter); }, gradient_type(impl)};
  if (sharding.shard_parameters) {
    units.choose(config.zero);
    warn_of_whole_parameters(impl, units, config);
  } else {
    units.make_whole();
  }
  const auto make = [&](const bucket::NamedTensors& parameters) {
    return parallel::flatten(parameters, impl.group, config.data_parallel, impl.group.size(), sharding);
  };
  impl.buffers = make(parallel::trainable_parameters(*impl.model, is_stage));
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

// Copies of a tied parameter are one parameter: summed before they are sent, counted once.
void respect_ties(Engine::Impl& impl) {
  impl.reducer->hold(impl.layers->late_parameters());
  impl.optimizer->leave_out_of_norm([&](const std::string& name) { return impl.layers->saved_name(name) != name; });
}

int64_t count_parameters(const Engine::Impl& impl) {
  at::Tensor count = torch::zeros({1}, torch::kInt64);
  std::set<const void*> seen;
  for (const auto& item : impl.model->named_parameters()) {
    const bool copy = impl.layers && impl.layers->saved_name(item.key()) != item.key();
    if (!copy && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      count += item.value().numel();
    }
  }
  impl.pipe.all_reduce(count, comm::ReduceOp::sum, "parameter count").wait();
  return count.item<int64_t>();
}

} // namespace

Initialized initialize(comm::World& world, const InitializeOptions& options) {
  check_options(options);
  fault::set_step(0);
  const config::EngineConfig& config = options.config;
  const mesh::Mesh mesh(world, mesh::MeshShape::fit(world.size(), options.pipeline ? options.pipeline->options().stages : 1, 1));
  auto impl = std::make_unique<Engine::Impl>();
  impl->model = options.model;
  impl->loss_function = options.loss;
  impl->group = mesh.group(mesh::Axis::data);
  impl->pipe = mesh.group(mesh::Axis::pipe);
  impl->everyone = mesh.world();
  impl->arrivals.emplace(impl->group);
  impl->batch = config.batch_for(impl->group.size());
  impl->clipping = config.gradient_clipping;
  impl->precision = config.precision;
  if (impl->precision.scales_loss()) {
    impl->scaler = precision::LossScaler(impl->precision.loss_scale);
  }
  impl->config = options.stored_config.value_or(config.source);
  impl->checkpoint = config.checkpoint;
  announce(config);

  zero::ModelUnits units;
  if (options.pipeline) {
    build_pipeline(*impl, world, mesh, options, units);
  } else {
    lower(*impl->model, impl->precision);
    units = zero::ModelUnits::of(*impl->model);
  }
  const std::vector<bucket::FlatParameters*> buffers = flatten(*impl, config, units);
  const bool sharded = config.zero.stage >= 1 && impl->group.size() > 1;
  impl->reducer = std::make_unique<parallel::Reducer>(buffers, impl->group, config.data_parallel, reduce_function(*impl, sharded));
  const std::vector<double> weight_decay(buffers.size(), config.optimizer->weight_decay());
  impl->optimizer = std::make_shared<optim::FlatOptimizer>(buffers, weight_decay, *config.optimizer, impl->group.rank(), impl->group.size(), sharded);
  impl->optimizer->sum_over([group = impl->group](at::Tensor& sums) { group.all_reduce(sums, comm::ReduceOp::sum, "norms of parameters").wait(); });
  impl->coordinator->on_modified([optimizer = std::weak_ptr(impl->optimizer)] {
    if (const auto alive = optimizer.lock()) {
      alive->refresh_masters();
    }
  });
  if (sharded) {
    impl->parameter_gather = std::make_unique<zero::ParameterGather>(buffers, impl->group);
  }
  if (impl->layers) {
    respect_ties(*impl);
  }
  impl->num_parameters = count_parameters(*impl);
  impl->schedule = optim::make_schedule(config.schedule, config.optimizer->lr());

  for (const std::string& warning : impl->schedule->warnings()) {
    log::warning(warning);
  }

  if (world.rank() == 0) {
    impl->report.emplace(config);
  }

  Initialized made;
  if (options.training_data) {
    data::SamplerOptions sampler;
    sampler.shuffle = options.shuffle;
    sampler.drop_last = config.dataloader_drop_last;
    sampler.seed = config.seed;
    sampler.rank = impl->group.rank();
    sampler.replicas = impl->group.size();
    impl->loader = std::make_shared<data::RepeatingLoader>(
        data::DataLoader(options.training_data, data::DistributedSampler(options.training_data->size(), sampler), impl->batch.micro,
                         /*prefetch=*/2, part_for(*impl)));
    made.loader = impl->loader;
  }
  made.optimizer = impl->optimizer;
  made.lr_scheduler = impl->schedule;
  made.engine = std::make_shared<Engine>(std::move(impl));
  return made;
}

} // namespace trireme::engine
