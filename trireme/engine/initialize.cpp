#include <trireme/engine/initialize.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/device/choose.h>
#include <trireme/device/cpu_allocator.h>
#include <trireme/device/stream.h>
#include <trireme/engine/build_agreement.h>
#include <trireme/engine/build_buffers.h>
#include <trireme/engine/build_model.h>
#include <trireme/engine/build_ranks.h>
#include <trireme/engine/build_stepper.h>
#include <trireme/engine/check_options.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/optimizer_groups.h>
#include <trireme/engine/resolve_precision.h>
#include <trireme/engine/same_options.h>
#include <trireme/engine/training_state.h>

#include <nlohmann/json.hpp>

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
              "; 0 switches that off");
  }
  if (config.dump_state) {
    log::info(config::to_json(config).dump(2));
  }
}

// Returns the device with an index: the thread's current one if it has none.
at::Device current(at::Device wanted) {
  if (wanted.is_cpu()) {
    return wanted;
  }
  const int there = device::count(wanted.type());
  if (there == 0 || wanted.index() >= there) {
    throw InputError("engine",
                     concat("InitializeOptions::device is ", wanted, ", but libtorch sees ", there, " of that kind"),
                     "Name an existing one, or the CPU.");
  }
  const at::Device device = device::with_index(wanted);
  device::make_current(device);
  return device;
}

struct Resolved {
  InitializeOptions options;
  at::Device device;
};

// Refuses what does not fit, and resolves a torch optimizer and all "auto".
Resolved resolve(comm::World& world, const InitializeOptions& given) {
  check_options(given);
  StepReport::check(given.config);
  if (given.pipeline) {
    given.pipeline->configure(given.config.pipeline);
  }
  Resolved out{given, at::kCPU};
  InitializeOptions& options = out.options;
  if (options.optimizer) {
    TorchOptimizer read = read_torch_optimizer(*options.optimizer);
    options.config.optimizer = read.options;
    options.parameter_groups = std::move(read.groups);
    options.config.gradient_clipping = options.config.gradient_clipping.value_or(0); // default of a torch loop
  }
  check_same_options(options.mesh ? options.mesh->group() : world.group(), options);
  check_together(world.group(), [&] { out.device = current(options.device ? *options.device : world.device()); });
  resolve_precision(options.config.precision, world.group(), out.device);
  check_together(world.group(), [&] { check_compatibility(given, options.config.precision, world, out.device); });
  check_split(options);
  return out;
}

} // namespace

Initialized initialize(comm::World& world, const InitializeOptions& given) {
  fault::set_step(0);
  device::install_cpu_allocator();
  const auto [options, device] = resolve(world, given);
  announce(options.config);
  auto impl = std::make_unique<Engine::Impl>();
  Parts& parts = impl->built;
  build_ranks(parts, world, options, device);
  build_agreement(parts, options);
  zero::ModelUnits units = build_model(parts, impl->state, options);
  build_buffers(parts, options, units);
  const bool graphs = options.cuda_graph != config::CudaGraph::off && !device.is_cpu();
  const c10::Stream stream = graphs ? device::KeptStreams().on(device) : device::current_stream(device);
  {
    const StepGraph::OnStream on(stream); // that of steps, which the gradient accumulators keep
    parts.buffers.reducer =
        std::make_unique<parallel::Reducer>(parallel::pointers_to(parts.buffers.trained), *parts.agreement.sync);
    parts.buffers.reducer->set_accepting(false); // except in the engine's own backward
  }
  build_stepper(parts, options, impl->optimizer_step, world.local_size());

  impl->graph = StepGraph::make(parts, options.cuda_graph, options.sync.has_value(), stream);
  if (impl->graph) {
    impl->optimizer_step.record_ends(device::make_graph_pool(device));
  }
  impl->arrivals.emplace(parts.ranks.group);
  impl->clock.measure_on(parts.device());
  if (parts.settings.precision.scales_loss()) {
    impl->state.scale = StepScale(parts.settings.precision.loss_scale);
  }
  if (world.rank() == 0 && parts.ranks.worker == 0) {
    impl->report.emplace(options.config);
  }
  if (parallel::Workers* const workers = parts.agreement.sync->workers()) {
    workers->attach_rest(TrainingState::rest_of(*impl, options.config.data_parallel.broadcast_buffers));
  }
  Initialized made;
  made.optimizer = parts.stepper.optimizer;
  made.loader = parts.stepper.loader;
  made.lr_scheduler = parts.stepper.schedule;
  made.engine = std::shared_ptr<Engine>(new Engine(std::move(impl)));
  return made;
}

} // namespace trireme::engine
