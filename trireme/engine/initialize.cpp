#include <trireme/engine/initialize.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/device/choose.h>
#include <trireme/device/stream.h>
#include <trireme/engine/build_model.h>
#include <trireme/engine/check_options.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/followed_rates.h>
#include <trireme/engine/make_activations.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/make_sync.h>
#include <trireme/engine/offload_room.h>
#include <trireme/engine/optimizer_groups.h>
#include <trireme/engine/random_state.h>
#include <trireme/engine/resolve_precision.h>
#include <trireme/engine/same_options.h>
#include <trireme/engine/training_state.h>
#include <trireme/mesh/mesh.h>
#include <trireme/parallel/data/sync_batch_norm.h>
#include <trireme/parallel/tensor/split.h>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <set>

namespace trireme::engine {

config::EngineConfig read_config(const std::filesystem::path& file, const config::AutoValues& known) {
  return config::read_deepspeed(JsonNode::parse_file(file), known);
}

namespace {

// Logs the notes of the configuration.
void announce(const config::EngineConfig& config) {
  if (config.log_level) {
    log::set_level(log::parse_level(*config.log_level));
  }
  for (const std::string& note : config.notes) {
    log::info(note);
  }
  if (!config.optimizer) {
    const optim::AdamOptions adamw = std::get<optim::AdamOptions>(config.optimizer_or_adamw().rule);
    log::info("the configuration has no \"optimizer\": AdamW with lr ", adamw.lr, ", betas ", adamw.beta1, " and ",
              adamw.beta2, ", eps ", adamw.eps, ", weight_decay ", adamw.weight_decay);
  }
  if (!config.gradient_clipping) {
    log::info("the configuration has no \"gradient_clipping\": gradients are clipped to norm ", config.clipping(),
              "; 0 leaves them as they are");
  }
  if (config.dump_state) {
    log::info(config::to_json(config).dump(2));
  }
}

// The part of a sample that this stage needs.
data::Part part_for(const Parts& parts) {
  if (!parts.executor || parts.pipe.size() == 1) {
    return data::Part::all;
  }
  return parts.executor->loads_inputs() ? data::Part::inputs : data::Part::targets;
}

std::vector<const bucket::FlatParameters*> all_buffers(const Parts& parts) {
  std::vector<const bucket::FlatParameters*> all;
  for (const parallel::FlatBuffers* buffers : {&parts.buffers, &parts.frozen}) {
    for (const auto& buffer : *buffers) {
      all.push_back(buffer.get());
    }
  }
  return all;
}

// Returns the configuration in use, whether it was read or built in code.
nlohmann::ordered_json used_config(const InitializeOptions& options) {
  config::EngineConfig used = options.config;
  if (options.pipeline) {
    const pipeline::PipelineOptions& pipeline = options.pipeline->options();
    used.pipeline = {pipeline.stages, pipeline.partition, pipeline.seed_layers,
                     pipeline.activation_checkpoint_interval};
  }
  return config::to_json(used);
}

std::shared_ptr<optim::Schedule> make_schedule(const InitializeOptions& options, double optimizer_lr) {
  if (options.lr) {
    return optim::make_schedule(options.lr);
  }
  if (options.optimizer && options.config.schedule.kind == optim::ScheduleOptions::Kind::constant) {
    return std::make_shared<FollowedRates>(options.optimizer);
  }
  return optim::make_schedule(options.config.schedule, optimizer_lr);
}

// Treats copies of a tied parameter as one: their gradients are summed before communication and counted once.
void respect_ties(Parts& parts) {
  if (!parts.layers->ties().empty() && parts.optimizer->sharded() &&
      parts.optimizer->rule().state_type() == optim::StateType::int8) {
    throw InputError("engine",
                     concat("8-bit optimizer states, sharded by ZeRO, of copies of a tied parameter (\"",
                            parts.layers->ties().front().name,
                            "\"): their blocks begin at other elements in each copy, which would drift apart"),
                     "Use \"state_dtype\": \"bf16\", or ZeRO stage 0.");
  }
  parts.reducer->hold(parts.layers->late_parameters());
}

void set_groups(Parts& parts, const mesh::Mesh& mesh) {
  using mesh::Axis;
  parts.data = mesh.group(Axis::data);
  parts.pipe = mesh.group(Axis::pipe);
  parts.context = mesh.group(Axis::context);
  parts.tensor = mesh.group(Axis::tensor);
  parts.group = mesh.group({Axis::data, Axis::context});
  parts.model_ranks = mesh.group({Axis::pipe, Axis::tensor});
  parts.stage = mesh.group({Axis::data, Axis::context, Axis::tensor});
  parts.everyone = mesh.group();
  parts.axes = axes_in_use(mesh.shape());
}

// The device with its number, as this thread's current one.
at::Device current(at::Device wanted) {
  if (wanted.is_cpu()) {
    return wanted;
  }
  const int there = device::count(wanted.type());
  if (there == 0 || wanted.index() >= there) {
    throw InputError("engine",
                     concat("InitializeOptions::device is ", wanted, ", and libtorch sees ", there, " of these"),
                     "Name one that is there, or the CPU.");
  }
  const at::Device device = device::with_index(wanted);
  device::make_current(device);
  return device;
}

// A GPU that cannot be used is an error of initialize(), not of the first backward.
void open_groups(const Parts& parts) {
  if (parts.device().is_cpu()) {
    return;
  }
  std::vector<comm::Group> groups = {parts.everyone, parts.group,       parts.pipe,
                                     parts.tensor,   parts.model_ranks, parts.sync->step_group()};
  const std::vector<comm::Group> of_sync = parts.sync->groups().every();
  groups.insert(groups.end(), of_sync.begin(), of_sync.end());
  for (const comm::Group& group : groups) {
    group.open(parts.device());
  }
  parts.context.open(parts.device(), comm::Neighbours::ring); // keys and values go round
}

bool any_has_several_reduce_groups(const Parts& parts) {
  at::Tensor most = torch::tensor({std::ssize(parts.sync->groups().all())}, torch::kInt64);
  parts.everyone.all_reduce(most, comm::ReduceOp::max, "number of reduce groups").wait();
  return most.item<int64_t>() > 1;
}

data::DataLoader make_loader(const Parts& parts, const InitializeOptions& options) {
  data::SamplerOptions sampler;
  sampler.shuffle = options.shuffle;
  sampler.drop_last = options.config.dataloader_drop_last;
  sampler.seed = options.config.seed;
  sampler.rank = parts.data.rank() + parts.worker;
  sampler.replicas = parts.data.size() * parts.workers;
  sampler.order = options.order;
  const auto data = options.collate ? data::collated(options.training_data, options.collate) : options.training_data;
  data::DataLoader loader(data, data::DistributedSampler(data->size(), sampler), parts.batch.micro, options.prefetch,
                          part_for(parts), !parts.device().is_cpu());
  if (options.order) {
    const auto mine = static_cast<int64_t>(loader.state().at("order").get<uint64_t>() >> 1);
    at::Tensor range = torch::tensor({mine, -mine}, torch::kInt64);
    parts.everyone.all_reduce(range, comm::ReduceOp::max, "order of the samples").wait();
    if (range[0].item<int64_t>() != -range[1].item<int64_t>()) {
      throw InputError("engine", "the ranks have different orders of the samples",
                       "InitializeOptions::order gives the whole epoch's, the same on every rank; each takes its part "
                       "of it by itself.");
    }
  }
  return loader;
}

// The module buffers that all tensor ranks have.
std::vector<at::Tensor> whole_buffers(const Parts& parts) {
  std::vector<at::Tensor> whole = parts.model->buffers();
  std::erase_if(whole, [&](const at::Tensor& buffer) { return parts.split.count(buffer.unsafeGetTensorImpl()) != 0; });
  return whole;
}

void synchronise_norms(Parts& parts, const comm::Group& ranks) {
  std::vector<torch::nn::Module*> modules;
  if (parts.layers) {
    for (const auto& layer : parts.layers->layer_modules()) {
      modules.push_back(layer.get());
    }
  } else {
    modules.push_back(parts.model.get());
  }
  check_together(parts.everyone, [&] { parts.synced_norms.emplace(modules, ranks); });
  parts.synced_norms->group().open(parts.device());
  if (parts.synced_norms->size() == 0 && ranks.size() > 1 && parts.pipe.size() == 1 && parts.everyone.rank() == 0) {
    log::warning("\"sync_batch_norm\": the model has no BatchNorm layers");
  }
}

// The ranks that have a parameter's elements count equal shares of them.
int64_t count_parameters(const Parts& parts) {
  std::map<const void*, double> trained;
  for (const auto& buffer : parts.buffers) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      const bucket::TensorInfo& tensor = buffer->layout().tensors()[i];
      const bool elsewhere = !tensor.placement.counts_in_norm && parts.tensor.rank() > 0;
      const bool is_box_of_all = buffer->reduce_group() == 0 && parts.tensor.size() == 1 && parts.split.empty() &&
                                 tensor.placement.tile.empty(); // by InitializeOptions::placement
      const auto numel =
          static_cast<double>(is_box_of_all ? c10::multiply_integers(tensor.global_shape()) : tensor.numel());
      trained[buffer->parameter(i).unsafeGetTensorImpl()] =
          elsewhere ? 0.0 : numel / parts.sync->groups().of(*buffer).size();
    }
  }
  double shares = 0;
  std::set<const void*> seen;
  for (const auto& item : parts.model->named_parameters()) {
    const void* const impl = item.value().unsafeGetTensorImpl();
    const bool copy = parts.layers && parts.layers->saved_name(item.key()) != item.key();
    if (copy || !seen.insert(impl).second) {
      continue;
    }
    if (const auto found = trained.find(impl); found != trained.end()) {
      shares += found->second;
    } else if (parts.placement_of(item.value()).counts_in_norm) {
      shares += static_cast<double>(item.value().numel()) / parts.group.size();
    }
  }
  at::Tensor sum = torch::tensor({shares}, torch::kFloat64);
  parts.everyone.all_reduce(sum, comm::ReduceOp::sum, "parameter count").wait();
  return std::llround(sum.item<double>());
}

} // namespace

Initialized initialize(comm::World& world, const InitializeOptions& given) {
  check_options(given);
  StepReport::check(given.config);
  if (given.pipeline) {
    given.pipeline->configure(given.config.pipeline);
  }
  fault::set_step(0);
  InitializeOptions options = given;
  if (options.optimizer) {
    TorchOptimizer read = read_torch_optimizer(*options.optimizer);
    options.config.optimizer = read.options;
    options.parameter_groups = std::move(read.groups);
    options.config.gradient_clipping = options.config.gradient_clipping.value_or(0); // as in a torch loop
  }
  check_same_options(options.mesh ? options.mesh->group() : world.group(), options);
  at::Device device = at::kCPU;
  check_together(world.group(), [&] {
    device = current(options.device ? *options.device : device::choose("auto", world.local_rank(), world.local_size()));
  });
  resolve_precision(options.config.precision, world.group(), device);
  check_together(world.group(), [&] { check_compatibility(given, options.config.precision, world, device); });
  const config::EngineConfig& config = options.config;
  check_split(options);
  const int stages = options.pipeline ? options.pipeline->options().stages : 1;
  const mesh::Mesh mesh =
      options.mesh ? *options.mesh
                   : mesh::training_mesh(world.group(),
                                         {.pipe = stages, .tensor = static_cast<int>(config.tensor_parallel.size)});
  check_mesh(mesh, stages);
  auto impl = std::make_unique<Engine::Impl>();
  Parts& parts = impl->parts;
  parts.model = options.model;
  parts.loss_function = options.loss;
  set_groups(parts, mesh);
  impl->arrivals.emplace(parts.group);
  if (options.server_worker) {
    parts.worker = options.server_worker->worker;
    parts.workers = options.server_worker->workers;
  } else if (options.replica) {
    if (!config.averaging.elastic) {
      throw InputError("engine", "InitializeOptions::replica without replicas that come and go in the configuration",
                       "Set AveragingOptions::elastic, or leave it out.");
    }
    parts.worker = options.replica->replica;
    parts.workers = options.replica->replicas;
  }
  parts.batch = config.batch_for(static_cast<int64_t>(parts.data.size()) * parts.workers);
  parts.clipping = config.clipping();
  parts.seed = config.seed;
  parts.precision = config.precision;
  if (parts.precision.scales_loss()) {
    impl->state.scale = StepScale(parts.precision.loss_scale);
  }
  parts.used_config = used_config(options);
  parts.config = options.stored_config.value_or(parts.used_config);
  parts.checkpoint = config.checkpoint;
  parts.run_token = options.run_token;
  announce(config);

  check_together(parts.everyone, [&] {
    parts.uploader = device::Uploader(device);
    if (options.model) {
      parts.claim.emplace(*options.model); // before anything of it is changed
    }
  });
  if (config.tensor_parallel.size > 1) {
    parts.ordinary.emplace(tensor::SplitModel::split(*options.model, config.tensor_parallel.rules, parts.tensor));
    parts.split = parts.ordinary->placements();
    if (world.rank() == 0) {
      log::info("split over ", parts.tensor.size(), " tensor ranks:\n", parts.ordinary->describe());
    }
  }
  impl->clock.measure_on(parts.device());
  check_same_sizes(parts);
  check_worker(options);
  check_together(parts.everyone, [&] { prepare_offload(parts, options); });
  parts.sync = make_sync(parts, options);
  check_together(parts.everyone, [&] { check_step_group(*parts.sync); });
  open_groups(parts);
  parts.several_reduce_groups = any_has_several_reduce_groups(parts);
  zero::ModelUnits units = build_model(parts, impl->state, options);
  check_together(parts.everyone, [&] {
    if (!parts.claim) { // a list of layers, built now
      parts.claim.emplace(*parts.model);
    }
  });
  const std::vector<bucket::FlatParameters*> buffers = flatten(parts, options, units);
  note_offload(parts, options);
  if (config.data_parallel.broadcast_buffers) {
    parts.module_buffers.emplace_back(parts.model->buffers(), parts.group);
    parts.module_buffers.emplace_back(whole_buffers(parts), parts.tensor);
  }
  parallel::name_norms(*parts.model);
  if (config.data_parallel.sync_batch_norm) {
    synchronise_norms(parts, options.sequence_parallel ? parts.stage : parts.group);
  }
  for (const bucket::FlatParameters* buffer : buffers) {
    log::debug("flat buffer of ", at::toString(buffer->scalar_type()), ": ", buffer->layout().numel(), " elements in ",
               buffer->layout().buckets().size(), " buckets");
  }
  for (const auto& buffer : parts.buffers) {
    buffer->clear_grads(); // of backwards before initialize()
  }
  parts.unchanged.emplace(*parts.model, all_buffers(parts));
  parts.reducer = std::make_unique<parallel::Reducer>(buffers, *parts.sync);
  parts.reducer->set_accepting(false); // but in the engine's own backward
  check_room_for_states(parts, options, buffers);
  const optim::OptimizerOptions optimizer = config.optimizer_or_adamw();
  const auto options_of_each = options_of(parts, options.parameter_groups, optimizer, options.optimizer != nullptr);
  const auto make_optimizer = [&] {
    parts.optimizer = std::make_shared<optim::FlatOptimizer>(
        buffers, options_of_each, optimizer, shards_states(parts, config),
        parts.server ? parts.server->make_store() : make_optimizer_store(parts, options), host_steps(parts, options));
  };
  if (parts.offloaded) {
    check_together(parts.everyone, make_optimizer); // a disk may be full on one rank
  } else {
    make_optimizer();
  }
  parts.optimizer->sum_over([groups = parts.sync->groups()](at::Tensor& sums, int reduce_group) {
    groups.shards(reduce_group).all_reduce(sums, comm::ReduceOp::sum, "norms of parameters").wait();
  });
  parts.sync->attach_values(*parts.optimizer);
  if (parts.server != nullptr) {
    join_servers(parts, config, options_of_each);
  }
  parts.coordinator->on_modified([optimizer = std::weak_ptr(parts.optimizer)] {
    if (const auto alive = optimizer.lock()) {
      alive->refresh_masters();
    }
  });
  if (config.step_in_backward) {
    parts.may_step_in_backward = true;
  }
  if (parts.may_step_in_backward || parts.optimizer->steps_on_host()) {
    parts.reducer->on_bucket_final(
        [step = &impl->optimizer_step](int64_t buffer, int64_t bucket) { step->bucket_final(buffer, bucket); });
  }
  if (parts.layers) {
    respect_ties(parts);
  }
  parts.num_parameters = count_parameters(parts);
  parts.schedule = make_schedule(options, optimizer.lr());
  parts.rates_may_differ = options.lr || options.optimizer;

  for (const std::string& warning : parts.schedule->warnings()) {
    log::warning(warning);
  }

  check_together(parts.everyone, [&] { make_activations(parts, options, world.local_size()); });
  if (world.rank() == 0 && parts.worker == 0) {
    impl->report.emplace(config);
  }

  Initialized made;
  if (options.training_data) {
    parts.loader = std::make_shared<data::RepeatingLoader>(make_loader(parts, options));
    made.loader = parts.loader;
  }
  if (parts.elastic != nullptr) {
    parts.elastic->attach_rest(TrainingState::rest_of(*impl, config.data_parallel.broadcast_buffers));
  }
  made.optimizer = parts.optimizer;
  made.lr_scheduler = parts.schedule;
  made.engine = std::shared_ptr<Engine>(new Engine(std::move(impl)));
  return made;
}

} // namespace trireme::engine
