#include <trireme/engine/initialize.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/mesh/mesh.h>

#include <torch/torch.h>

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

} // namespace

Initialized initialize(comm::World& world, const InitializeOptions& options) {
  if (!options.model || !options.loss) {
    throw InputError("engine", "initialize() needs a model and a loss function");
  }
  const config::EngineConfig& config = options.config;
  if (!config.optimizer) {
    throw InputError("engine", "the configuration has no \"optimizer\"", R"(Add "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}.)");
  }
  const mesh::Mesh mesh(world, mesh::MeshShape::fit(world.size(), 1, 1));
  auto impl = std::make_unique<Engine::Impl>();
  impl->model = options.model;
  impl->loss_function = options.loss;
  impl->group = mesh.group(mesh::Axis::data);
  impl->batch = config.batch_for(impl->group.size());
  impl->clipping = config.gradient_clipping;
  impl->config = options.stored_config.value_or(config.source);
  impl->checkpoint = config.checkpoint;
  announce(config);

  impl->buffers = parallel::flatten(parallel::trainable_parameters(*options.model), impl->group, config.data_parallel);
  parallel::check_same_model(impl->buffers, impl->group);
  if (config.data_parallel.broadcast_at_start) {
    parallel::broadcast_parameters(impl->buffers, impl->group);
    parallel::broadcast_untrained(*options.model, impl->group);
  }
  std::vector<bucket::FlatParameters*> buffers;
  for (const auto& buffer : impl->buffers) {
    buffers.push_back(buffer.get());
  }
  impl->reducer = std::make_unique<parallel::Reducer>(buffers, impl->group, config.data_parallel);
  const std::vector<double> weight_decay(buffers.size(), config.optimizer->weight_decay());
  impl->optimizer = std::make_shared<optim::FlatOptimizer>(buffers, weight_decay, *config.optimizer, impl->group.rank(), impl->group.size(),
                                                           /*sharded=*/false);
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
        data::DataLoader(options.training_data, data::DistributedSampler(options.training_data->size(), sampler), impl->batch.micro));
    made.loader = impl->loader;
  }
  made.optimizer = impl->optimizer;
  made.lr_scheduler = impl->schedule;
  made.engine = std::make_shared<Engine>(std::move(impl));
  return made;
}

} // namespace trireme::engine
