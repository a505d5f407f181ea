#include <trireme/engine/build_ranks.h>

#include <trireme/base/error.h>
#include <trireme/engine/check_options.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/random_state.h>
#include <trireme/engine/same_options.h>
#include <trireme/memory/offload/places.h>

#include <nlohmann/json.hpp>

namespace trireme::engine {
namespace {

mesh::Mesh mesh_of(const comm::World& world, const InitializeOptions& options) {
  const int stages = options.pipeline ? options.pipeline->options().stages : 1;
  mesh::Mesh mesh =
      options.mesh
          ? *options.mesh
          : mesh::training_mesh(world.group(),
                                {.pipe = stages, .tensor = static_cast<int>(options.config.tensor_parallel.size)});
  check_mesh(mesh, stages);
  return mesh;
}

// Returns the configuration as used, read from a file or built in code.
nlohmann::ordered_json used_config(const InitializeOptions& options) {
  config::EngineConfig used = options.config;
  if (options.pipeline) {
    const pipeline::PipelineOptions& pipeline = options.pipeline->options();
    used.pipeline = {pipeline.stages, pipeline.partition, pipeline.seed_layers,
                     pipeline.activation_checkpoint_interval};
  }
  return config::to_json(used);
}

Ranks ranks_of(const mesh::Mesh& mesh, const InitializeOptions& options) {
  using mesh::Axis;
  Ranks out;
  out.data = mesh.group(Axis::data);
  out.pipe = mesh.group(Axis::pipe);
  out.context = mesh.group(Axis::context);
  out.tensor = mesh.group(Axis::tensor);
  out.group = mesh.group({Axis::data, Axis::context});
  out.model_ranks = mesh.group({Axis::pipe, Axis::tensor});
  out.stage = mesh.group({Axis::data, Axis::context, Axis::tensor});
  out.everyone = mesh.group();
  out.axes = axes_in_use(mesh.shape());
  if (options.sync) {
    out.worker = options.sync->worker;
    out.workers = options.sync->workers;
  }
  return out;
}

Settings settings_of(const Ranks& ranks, const InitializeOptions& options, at::Device device) {
  const config::EngineConfig& config = options.config;
  Settings out;
  out.batch = config.batch_for(static_cast<int64_t>(ranks.data.size()) * ranks.workers);
  out.clipping = config.clipping();
  out.seed = config.seed;
  out.precision = config.precision;
  out.sharding = sharding_of(config, ranks.group.size(), device);
  out.builds_on_host = offload::builds_on_host(config.offload, !device.is_cpu(), out.sharding.parameters);
  out.rates_may_differ = options.lr || options.optimizer;
  out.used_config = used_config(options);
  out.config = options.stored_config.value_or(out.used_config);
  out.checkpoint = config.checkpoint;
  out.run_token = options.run_token;
  return out;
}

} // namespace

void build_ranks(Parts& parts, const comm::World& world, const InitializeOptions& options, at::Device device) {
  parts.ranks = ranks_of(mesh_of(world, options), options);
  parts.settings = settings_of(parts.ranks, options, device);
  check_together(parts.ranks.everyone, [&] { parts.ranks.uploader = std::make_unique<device::Uploader>(device); });
  check_same_sizes(parts);
  check_together(parts.ranks.everyone, [&] { prepare_offload(parts, options); });
}

} // namespace trireme::engine
