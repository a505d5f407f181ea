#include <trireme/engine/check_options.h>

#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>
#include <trireme/engine/make_sync.h>

#include <torch/nn/module.h>

namespace trireme::engine {

void check_options(const InitializeOptions& options) {
  if (!options.pipeline && (!options.model || !options.loss)) {
    throw InputError("engine", "initialize() needs a model and a loss function, or a pipeline");
  }
  if (options.pipeline && (options.model || options.loss)) {
    throw InputError("engine", "initialize() got both a model and a pipeline",
                     "A PipelineModule has its layers and its loss: leave model and loss away.");
  }
  if (options.optimizer && (options.config.optimizer || !options.parameter_groups.empty())) {
    throw InputError("engine",
                     concat("initialize() got a torch optimizer beside ",
                            options.config.optimizer ? "the configuration's \"optimizer\"" : "parameter_groups"),
                     "Leave one of them out.");
  }
  const bool has_scheduler = options.config.schedule.kind != optim::ScheduleOptions::Kind::constant;
  if (options.lr && (has_scheduler || options.optimizer)) {
    throw InputError(
        "engine",
        concat("initialize() got a function for the lr beside ",
               has_scheduler ? "the configuration's \"scheduler\"" : "a torch optimizer, whose groups have theirs"),
        "Leave one of them out.");
  }
  if (options.optimizer && options.pipeline) {
    throw InputError(
        "engine", "initialize() got a torch optimizer and a pipeline, whose parameters do not exist before it is built",
        "Say \"optimizer\" in the configuration, and InitializeOptions::parameter_groups where parameters differ.");
  }
}

void apply_pipeline(const InitializeOptions& options) {
  const pipeline::PipelineKeys& keys = options.config.pipeline;
  if (options.pipeline) {
    options.pipeline->configure(keys);
    return;
  }
  const char* const asked = keys.stages.value_or(1) > 1                           ? "stages"
                            : keys.activation_checkpoint_interval.value_or(0) > 0 ? "activation_checkpoint_interval"
                            : keys.seed_layers.value_or(false)                    ? "seed_layers"
                                                                                  : nullptr;
  if (asked != nullptr) {
    throw InputError(
        "engine", concat("the configuration asks for \"pipeline\": {\"", asked, "\"}, but the model is in one piece"),
        "Give initialize() a PipelineModule, a list of layers, or leave the key out. To recompute the blocks of a "
        "model in one piece, say "
        "\"activation_checkpointing\": {\"policy\": \"recompute\"}; its forward() calls them as zero::Sharded or with "
        "trireme::activations::call(part, f, x).");
  }
}

void check_step_in_backward(const Parts& parts, const InitializeOptions& options) {
  const char* const needs_all = options.config.averaging.on()           ? "parameter_averaging"
                                : options.gradient_sync                 ? "a gradient_sync of its own"
                                : compresses(options.config) != nullptr ? compresses(options.config)
                                : parts.clipping > 0                    ? "gradient_clipping"
                                : parts.looks_for_overflow()
                                    ? "the look for NaN in fp16 and bf16 gradients (bf16.check_grad_overflow)"
                                : parts.optimizer->needs_norms() ? "LAMB"
                                : parts.pipe.size() > 1          ? "a pipeline"
                                                                 : nullptr;
  if (needs_all != nullptr) {
    throw InputError("engine",
                     concat("step_in_backward with ", needs_all,
                            ", which needs all gradients before the first parameter is stepped"),
                     "Switch one of them off (\"gradient_clipping\": 0).");
  }
}

void check_split(const InitializeOptions& options) {
  const int64_t size = options.config.tensor_parallel.size;
  if (size == 1) {
    return;
  }
  if (options.pipeline) {
    throw InputError("engine", "tensor_parallel splits a model in one piece, and initialize() got a pipeline",
                     "Write its layers with tensor::ColumnParallelLinear and the like, or leave autotp_size out.");
  }
  if (options.sequence_parallel) {
    throw InputError("engine",
                     "tensor_parallel splits a model that does not split its sequences, and "
                     "InitializeOptions::sequence_parallel is set",
                     "It would add up gradients that are the same on all tensor ranks: leave it out.");
  }
  for (const at::Tensor& parameter : options.model->parameters()) {
    if (!device::has_memory(parameter)) {
      throw InputError("engine",
                       "tensor_parallel with a model made under zero::Init, which has sharded its parameters already",
                       "Build the model after zero::Init has ended.");
    }
  }
  if (options.placement) {
    throw InputError("engine", "tensor_parallel says where parameters lie, and so does InitializeOptions::placement",
                     "Leave one of them out.");
  }
  if (options.mesh && options.mesh->shape().size(mesh::Axis::tensor) != size) {
    throw InputError("engine",
                     concat("tensor_parallel has ", size, " ranks and the tensor axis of InitializeOptions::mesh ",
                            options.mesh->shape().size(mesh::Axis::tensor)),
                     "Make them equal, or leave the mesh out. Models that bring their own rules, as a run file's, need "
                     "no tensor_parallel.");
  }
}

void check_mesh(const mesh::Mesh& mesh, int stages) {
  if (const int pipe = mesh.shape().size(mesh::Axis::pipe); pipe != stages) {
    throw InputError(
        "engine", concat("InitializeOptions::mesh has ", pipe, " pipeline stages and the model ", stages),
        "Make it by mesh::training_mesh() with pipe as in PipelineOptions::stages; 1 for a model in one piece.");
  }
}

void check_step_group(const parallel::GradientSync& sync) {
  const comm::Group& group = sync.step_group();
  if (group.size() > 1 && group.members() != sync.group().members()) {
    throw InputError(
        "engine",
        concat("GradientSync::step_group() has ", group.size(), " of the ", sync.group().size(), " data ranks"),
        "Either all data ranks take a step as one, or each by itself: return group(), or a group of one.");
  }
}

} // namespace trireme::engine
