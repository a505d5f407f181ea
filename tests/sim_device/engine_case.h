#pragma once

#include "sim_device.h"

#include <tests/engine/small_run.h>
#include <tests/support/run_ranks.h>

#include <trireme/mesh/mesh.h>
#include <trireme/models/gpt_layers.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <functional>

// One model, trained on the CPU and on the simulated device.
namespace trireme::engine {

inline constexpr int kSteps = 4;

struct Case {
  std::string name;
  int zero_stage = 0;
  precision::Type type = precision::Type::fp32;
  bool autocast = false;
  int64_t accumulation = 2;
  double clipping = 1;
  int stages = 1;
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
  int chunks = 1;
  int recompute = 0;
  bool step_in_backward = false;
  std::string optimizer = "AdamW";
  optim::StateType states = optim::StateType::fp32;
  int context = 1;
  context::Kind context_kind = context::Kind::ring;
  int tensor = 1;
  bool sequence_parallel = false;
  double dropout = 0;
  parallel::AveragingOptions averaging = {};

  int ranks_of_one_model() const { return stages * context * tensor; }
};

/// The ranks that share tokens and layers.
inline models::ModelRanks ranks_of(const Case& one, const mesh::Mesh& mesh) {
  models::ModelRanks ranks;
  ranks.tensor = {mesh.group(mesh::Axis::tensor), one.sequence_parallel};
  ranks.context = mesh.group(mesh::Axis::context);
  ranks.context_kind = one.context_kind;
  return ranks;
}

inline mesh::Mesh mesh_of(comm::World& world, const Case& one) {
  return mesh::training_mesh(world.group(), {.pipe = one.stages, .context = one.context, .tensor = one.tensor});
}

/// Without a mesh: not split along tensor or context.
inline InitializeOptions options_of(const Case& one, at::Device device,
                                    const std::optional<mesh::Mesh>& mesh = std::nullopt) {
  InitializeOptions options;
  options.device = device;
  options.mesh = mesh;
  options.sequence_parallel = one.sequence_parallel;
  const models::ModelRanks ranks = mesh ? ranks_of(one, *mesh) : models::ModelRanks();
  models::GptOptions shape = small_gpt(one.dropout);
  shape.heads = 2 * one.tensor;
  options.config = zero_config(one.zero_stage, one.accumulation, one.clipping);
  options.config.precision.compute = one.type;
  if (one.type == precision::Type::fp16) {
    options.config.precision.loss_scale.initial_scale_power = 10;
  }
  if (one.autocast) {
    options.config.precision.autocast = true;
    options.config.precision.autocast_type = precision::Type::bf16;
  }
  options.config.step_in_backward = one.step_in_backward;
  options.config.averaging = one.averaging;
  if (one.optimizer == "LAMB") {
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::LambOptions{}, .state_type = one.states};
  } else if (one.optimizer == "SGD") {
    options.config.optimizer =
        optim::OptimizerOptions{.rule = optim::SgdOptions{.lr = 0.05, .momentum = 0.9}, .state_type = one.states};
  } else {
    options.config.optimizer->state_type = one.states;
  }
  options.training_data = std::make_shared<Counting>();
  options.shuffle = true;
  if (one.stages > 1 || one.recompute > 0) {
    pipeline::PipelineOptions stages;
    stages.stages = one.stages;
    stages.schedule = one.schedule;
    stages.chunks = one.chunks;
    stages.activation_checkpoint_interval = one.recompute;
    options.pipeline = std::make_shared<pipeline::PipelineModule>(models::gpt_layers(shape, ranks),
                                                                  models::gpt_loss(shape, ranks), stages);
    options.config.pipeline = {};
  } else {
    models::Gpt model(shape, ranks);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  }
  return options;
}

struct Seen {
  std::vector<double> numbers; // losses, norms
  std::vector<at::Tensor> weights;
};

inline void add_step(Seen& seen, const Engine& engine) {
  seen.numbers.push_back(engine.loss());
  seen.numbers.push_back(engine.get_global_grad_norm().value_or(0));
}

inline void add_weights(Seen& seen, Engine& engine) {
  const std::vector<at::Tensor> parameters = engine.module().parameters();
  const auto whole = engine.gather_parameters(parameters);
  for (const at::Tensor& parameter : parameters) {
    seen.weights.push_back(parameter.detach().cpu().clone());
  }
}

/// Runs what is a step, in which the host may wait for the device once.
template <typename F>
void step(const Engine& engine, const F& f) {
  sim::reset_host_synchronisations();
  f();
  EXPECT_LE(sim::host_synchronisations(), engine.device().is_cpu() ? 0 : 1)
      << testing::PrintToString(sim::host_synchronisation_names());
}

inline Seen train(Engine& engine, int steps = kSteps) {
  Seen seen;
  for (int i = 0; i < steps; ++i) {
    step(engine, [&] { engine.train_batch(); });
    add_step(seen, engine);
  }
  add_weights(seen, engine);
  return seen;
}

// Autocast casts other operations on a GPU than on the CPU.
inline void expect_near(const Seen& device, const Seen& cpu) {
  for (size_t i = 0; i < cpu.numbers.size(); ++i) {
    const double tolerance = i % 2 == 0 ? 0.005 : 0.05; // losses, norms
    EXPECT_NEAR(device.numbers[i], cpu.numbers[i], tolerance * cpu.numbers[i]);
  }
}

inline void expect_same(const Seen& device, const Seen& cpu) {
  EXPECT_EQ(device.numbers, cpu.numbers);
  ASSERT_EQ(device.weights.size(), cpu.weights.size());
  for (size_t i = 0; i < cpu.weights.size(); ++i) {
    EXPECT_TRUE(device.weights[i].equal(cpu.weights[i])) << "parameter " << i;
  }
}

inline const int scalar = ::setenv("TRIREME_SIMD", "scalar", 1); // before anybody asks for kernels

inline void start(int devices = 1) {
  at::globalContext().setSDPUseFlash(false); // attention is made of the same operations on both
  sim::start(devices);
  sim::set_polls(2); // events are not ready at once: who only asks has not ordered anything
  sim::use_cpu_optimizer_kernels();
}

using Run = std::function<Seen(comm::World& world, at::Device device)>;

/// Runs it on the CPU, then on the device.
inline void on_both(int ranks, const Run& run) {
  EXPECT_THAT(test::run_ranks(ranks,
                              [&](comm::World& world) {
                                start();
                                const Seen cpu = run(world, at::kCPU);
                                expect_same(run(world, sim::device()), cpu);
                                EXPECT_THAT(sim::problems(), testing::IsEmpty());
                              }),
              testing::IsEmpty())
      << ranks << " ranks";
}

inline std::filesystem::path scratch(const char* name) {
  return std::filesystem::path(testing::TempDir()) / concat("trireme_sim_device_", name, '_', ::getpid());
}

} // namespace trireme::engine
