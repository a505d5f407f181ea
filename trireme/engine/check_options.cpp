#include <trireme/engine/check_options.h>

#include <trireme/base/error.h>
#include <trireme/config/compatibility.h>
#include <trireme/device/absent_memory.h>

#include <torch/nn/module.h>

namespace trireme::engine {

void check_options(const InitializeOptions& options) {
  if (!options.pipeline && (!options.model || !options.loss)) {
    throw InputError("engine", "initialize() needs a model and a loss function, or a pipeline");
  }
  if (options.pipeline && (options.model || options.loss)) {
    throw InputError("engine", "initialize() got both a model and a pipeline",
                     "A PipelineModule contains layers and loss: remove model and loss.");
  }
  if (options.training_data && options.training_loader) {
    throw InputError("engine", "initialize() got both training_data and a training_loader", "Remove one of them.");
  }
}

void check_compatibility(const InitializeOptions& options, const precision::PrecisionOptions& resolved,
                         const comm::World& world, at::Device device) {
  config::EngineConfig used = options.config;
  used.precision = resolved;
  if (options.optimizer) {
    used.gradient_clipping = used.gradient_clipping.value_or(0);
  }
  config::Setting setting{.engine = used};
  setting.program = config::ProgramOptions{.pipeline = options.pipeline != nullptr,
                                           .optimizer = options.optimizer != nullptr,
                                           .parameter_groups = !options.parameter_groups.empty(),
                                           .lr = options.lr != nullptr,
                                           .own_sync = options.sync && options.sync->kind.empty(),
                                           .server_worker = options.sync && options.sync->kind == "server",
                                           .replica = options.sync && options.sync->kind == "elastic",
                                           .placement = options.placement || options.reduce_groups,
                                           .state_store = options.state_store != nullptr};
  setting.device = device.is_cpu() ? "" : device.str();
  const auto ranks_of = [&](const char* axis, int64_t otherwise) {
    return options.mesh ? options.mesh->shape().size(axis) : otherwise;
  };
  setting.pipe = options.pipeline ? options.pipeline->options().stages : 1;
  setting.context = ranks_of(mesh::Axis::context, 1);
  setting.tensor = ranks_of(mesh::Axis::tensor, used.tensor_parallel.size);
  setting.sequence_parallel = options.sequence_parallel;
  setting.replica_ranks = options.mesh ? options.mesh->group().size() : world.size();
  if (const std::optional<config::Conflict> conflict = config::find_conflict(setting)) {
    throw InputError("engine", conflict->what, conflict->next);
  }
}

void check_split(const InitializeOptions& options) {
  const int64_t size = options.config.tensor_parallel.size;
  if (size == 1) {
    return;
  }
  for (const at::Tensor& parameter : options.model->parameters()) {
    if (!device::has_memory(parameter)) {
      throw InputError(
          "engine", "tensor_parallel cannot split a model made under zero::Init, whose parameters are sharded already",
          "Build the model after zero::Init has ended.");
    }
  }
  if (options.mesh && options.mesh->shape().size(mesh::Axis::tensor) != size) {
    throw InputError("engine",
                     concat("tensor_parallel has ", size, " ranks and the tensor axis of InitializeOptions::mesh ",
                            options.mesh->shape().size(mesh::Axis::tensor)),
                     "Make them equal, or remove the mesh. Models with their own rules, such as a run file's, need no "
                     "tensor_parallel.");
  }
}

void check_mesh(const mesh::Mesh& mesh, int stages) {
  if (const int pipe = mesh.shape().size(mesh::Axis::pipe); pipe != stages) {
    throw InputError(
        "engine", concat("InitializeOptions::mesh has ", pipe, " pipeline stages and the model ", stages),
        "Make it by mesh::training_mesh() with pipe as in PipelineOptions::stages; 1 for a model in one piece.");
  }
}

} // namespace trireme::engine
