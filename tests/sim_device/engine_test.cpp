// The engine on the simulated device gives the bits that it gives on the CPU, without a race, and waits for the device
// once a step. TRIREME_SIMD=scalar: the CPU takes ATen's operations, as devices do, instead of the fused ones.
#include "engine_case.h"

#include <tests/support/run_ranks.h>
#include <trireme/engine/sync_kinds.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/device/move.h>
#include <trireme/generate/sample.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

class SimDeviceEngineTest : public testing::TestWithParam<Case> {};

void compare(comm::World& world, const Case& one) {
  start();
  const mesh::Mesh mesh = mesh_of(world, one);
  const Seen cpu = train(*initialize(world, options_of(one, at::kCPU, mesh)).engine);
  const auto engine = initialize(world, options_of(one, sim::device(), mesh)).engine;
  EXPECT_EQ(engine->device(), sim::device());
  for (const at::Tensor& parameter : engine->module().parameters()) {
    EXPECT_EQ(parameter.device(), sim::device());
  }
  (one.autocast ? expect_near : expect_same)(train(*engine), cpu);
  EXPECT_THAT(sim::problems(), IsEmpty());
  sim::reset_host_synchronisations();
  engine->train_batch();
  EXPECT_LE(sim::host_synchronisations(), 1) << testing::PrintToString(sim::host_synchronisation_names());
}

/// Data parallelism of more ranks, and what travels over gloo.
class SimDeviceRanksTest : public testing::TestWithParam<std::tuple<Case, int, const char*>> {};

TEST_P(SimDeviceRanksTest, IsEqualToTheCpu) {
  const auto& [one, ranks, backend] = GetParam();
  on_ranks(ranks,
           [&, &one = one, wanted = backend](comm::World& world) {
             ASSERT_STREQ(world.group().backend(), wanted);
             compare(world, one);
           },
           {.backend = backend});
}

std::string name_of(const testing::TestParamInfo<std::tuple<Case, int, const char*>>& info) {
  const auto& [one, ranks, backend] = info.param;
  return concat(one.name, "_", ranks, "ranks_", backend);
}

INSTANTIATE_TEST_SUITE_P(
    Shm, SimDeviceRanksTest,
    testing::Combine(testing::Values(Case{.name = "zero0"}, Case{.name = "zero1", .zero_stage = 1, .type = Type::bf16},
                                     Case{.name = "zero2", .zero_stage = 2}, Case{.name = "zero3", .zero_stage = 3}),
                     testing::Values(3, 4), testing::Values("shm")),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Gloo, SimDeviceRanksTest,
    testing::Values(std::tuple(Case{.name = "zero0"}, 3, "gloo"),
                    std::tuple(Case{.name = "zero1", .zero_stage = 1}, 2, "gloo"),
                    std::tuple(Case{.name = "zero3", .zero_stage = 3}, 3, "gloo"),
                    std::tuple(Case{.name = "pipe_zero1", .zero_stage = 1, .accumulation = 4, .stages = 2}, 4, "gloo")),
    name_of);

TEST_P(SimDeviceEngineTest, IsEqualToTheCpu) {
  const Case& one = GetParam();
  for (const int replicas : {1, 2}) {
    if (const int ranks = replicas * one.ranks_of_one_model(); ranks <= 4) {
      EXPECT_THAT(run_ranks(ranks, [&](comm::World& world) { compare(world, one); }), IsEmpty()) << replicas;
    }
  }
}

std::vector<Case> cases() {
  using pipeline::ScheduleKind;
  std::vector<Case> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({.name = concat("zero", stage), .zero_stage = stage});
    all.push_back({.name = concat("zero", stage, "_bf16"), .zero_stage = stage, .type = Type::bf16});
  }
  all.push_back({.name = "fp16", .type = Type::fp16});
  all.push_back({.name = "autocast", .autocast = true});
  all.push_back({.name = "no_clipping", .clipping = 0});
  all.push_back({.name = "step_in_backward", .clipping = 0, .step_in_backward = true});
  all.push_back({.name = "step_in_backward_zero2", .zero_stage = 2, .clipping = 0, .step_in_backward = true});
  all.push_back({.name = "step_in_backward_zero3", .zero_stage = 3, .clipping = 0, .step_in_backward = true});
  all.push_back({.name = "lamb", .optimizer = "LAMB"});
  all.push_back({.name = "lamb_zero1", .zero_stage = 1, .optimizer = "LAMB"});
  all.push_back({.name = "sgd", .optimizer = "SGD"});
  all.push_back({.name = "states_bf16", .zero_stage = 1, .states = optim::StateType::bf16});
  all.push_back({.name = "states_int8", .states = optim::StateType::int8});
  all.push_back({.name = "recompute", .recompute = 1});
  all.push_back({.name = "recompute_zero3", .zero_stage = 3, .recompute = 1});
  using Averaging = parallel::AveragingOptions;
  const Averaging nesterov{.every = 3, .outer = Averaging::Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9};
  if (has_extensions()) {
    all.push_back({.name = "averaging", .averaging = {.every = 2}});
    all.push_back({.name = "averaging_nesterov_bf16", .type = Type::bf16, .averaging = nesterov});
    all.push_back({.name = "averaging_slowmo_int8",
                   .states = optim::StateType::int8,
                   .averaging = {.every = 2,
                                 .outer = Averaging::Outer::slowmo,
                                 .outer_momentum = 0.5,
                                 .states = Averaging::States::average}});
    all.push_back({.name = "averaging_warm_up", .averaging = {.every = 2, .start_step = 2}});
    all.push_back({.name = "averaging_pipe", .accumulation = 4, .stages = 2, .averaging = nesterov});
  }
  all.push_back({.name = "naive", .stages = 2, .schedule = ScheduleKind::naive});
  all.push_back({.name = "gpipe", .accumulation = 4, .stages = 2, .schedule = ScheduleKind::gpipe});
  all.push_back({.name = "one_f_one_b", .accumulation = 4, .stages = 2});
  all.push_back({.name = "one_f_one_b_4", .accumulation = 4, .stages = 4});
  all.push_back(
      {.name = "interleaved", .accumulation = 4, .stages = 2, .schedule = ScheduleKind::interleaved, .chunks = 2});
  all.push_back({.name = "zero_bubble", .accumulation = 4, .stages = 2, .schedule = ScheduleKind::zero_bubble});
  all.push_back({.name = "pipe_zero1", .zero_stage = 1, .accumulation = 4, .stages = 2});
  all.push_back({.name = "pipe_zero2_bf16", .zero_stage = 2, .type = Type::bf16, .accumulation = 4, .stages = 2});
  all.push_back({.name = "pipe_recompute", .accumulation = 4, .stages = 2, .recompute = 1});
  all.push_back({.name = "tensor", .tensor = 2});
  all.push_back({.name = "tensor_sequence", .tensor = 2, .sequence_parallel = true});
  all.push_back({.name = "tensor_sequence_zero1_bf16",
                 .zero_stage = 1,
                 .type = Type::bf16,
                 .tensor = 2,
                 .sequence_parallel = true});
  all.push_back({.name = "tensor_autocast", .autocast = true, .tensor = 2});
  all.push_back({.name = "tensor_zero3", .zero_stage = 3, .tensor = 2});
  all.push_back({.name = "tensor_sequence_recompute_zero3",
                 .zero_stage = 3,
                 .recompute = 1,
                 .tensor = 2,
                 .sequence_parallel = true});
  all.push_back({.name = "ring", .context = 2});
  all.push_back({.name = "ring_zero3", .zero_stage = 3, .context = 2});
  all.push_back({.name = "ulysses", .context = 2, .context_kind = context::Kind::ulysses});
  all.push_back({.name = "ulysses_zero1_bf16",
                 .zero_stage = 1,
                 .type = Type::bf16,
                 .context = 2,
                 .context_kind = context::Kind::ulysses});
  all.push_back({.name = "ring_of_four", .zero_stage = 1, .context = 4});
  all.push_back({.name = "ring_tensor_sequence", .context = 2, .tensor = 2, .sequence_parallel = true});
  all.push_back({.name = "ulysses_tensor_zero2",
                 .zero_stage = 2,
                 .context = 2,
                 .context_kind = context::Kind::ulysses,
                 .tensor = 2});
  all.push_back(
      {.name = "pipe_tensor_sequence", .accumulation = 4, .stages = 2, .tensor = 2, .sequence_parallel = true});
  all.push_back({.name = "pipe_zero_bubble_tensor",
                 .accumulation = 4,
                 .stages = 2,
                 .schedule = ScheduleKind::zero_bubble,
                 .tensor = 2});
  all.push_back({.name = "pipe_ring", .accumulation = 4, .stages = 2, .context = 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceEngineTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

class SimDeviceParts : public testing::Test {
 protected:
  ~SimDeviceParts() override { fs::remove_all(folder_); }
  fs::path folder_ = scratch("parts");
};

// Saved on either, loaded by either: the same bits go on, those of a run that was never saved.
void expect_the_same_goes_on(int ranks, const Case& one, const fs::path& folder) {
  EXPECT_THAT(run_ranks(ranks,
                        [&](comm::World& world) {
                          start();
                          const mesh::Mesh mesh = mesh_of(world, one);
                          const auto engine_on = [&](at::Device device) {
                            return initialize(world, options_of(one, device, mesh)).engine;
                          };
                          const auto saving = engine_on(sim::device());
                          train(*saving, 2);
                          saving->save_checkpoint(folder, "of_device");
                          const auto on_cpu = engine_on(at::kCPU);
                          ASSERT_TRUE(on_cpu->load_checkpoint(folder, "of_device"));
                          on_cpu->save_checkpoint(folder, "of_cpu");
                          Seen expected = train(*engine_on(sim::device()), 4);
                          expected.numbers.erase(expected.numbers.begin(),
                                                 expected.numbers.end() - 4); // two steps' losses and norms
                          expect_same(train(*saving, 2), expected);
                          expect_same(train(*on_cpu, 2), expected);
                          for (const char* tag : {"of_device", "of_cpu"}) {
                            const auto again = engine_on(sim::device());
                            ASSERT_TRUE(again->load_checkpoint(folder, tag));
                            expect_same(train(*again, 2), expected);
                          }
                          EXPECT_THAT(sim::problems(), IsEmpty());
                        }),
              IsEmpty())
      << one.name;
}

TEST_F(SimDeviceParts, CheckpointsGoFromDeviceToCpuAndBack) {
  expect_the_same_goes_on(2, {.name = "zero0"}, folder_ / "zero0");
  expect_the_same_goes_on(2, {.name = "zero1", .zero_stage = 1, .type = Type::bf16}, folder_ / "zero1");
  expect_the_same_goes_on(2, {.name = "zero3", .zero_stage = 3}, folder_ / "zero3");
}

TEST_F(SimDeviceParts, CheckpointsOfPipelinesGoFromDeviceToCpuAndBack) {
  using pipeline::ScheduleKind;
  expect_the_same_goes_on(2, {.name = "one_f_one_b", .accumulation = 4, .stages = 2}, folder_ / "one_f_one_b");
  expect_the_same_goes_on(2,
                          {.name = "interleaved",
                           .type = Type::bf16,
                           .accumulation = 4,
                           .stages = 2,
                           .schedule = ScheduleKind::interleaved,
                           .chunks = 2},
                          folder_ / "interleaved");
  expect_the_same_goes_on(4, {.name = "zero1", .zero_stage = 1, .accumulation = 4, .stages = 2}, folder_ / "zero1");
}

TEST_F(SimDeviceParts, CheckpointsOfSplitModelsGoFromDeviceToCpuAndBack) {
  expect_the_same_goes_on(4, {.name = "tensor", .zero_stage = 1, .tensor = 2, .sequence_parallel = true},
                          folder_ / "tensor");
  expect_the_same_goes_on(4, {.name = "context", .zero_stage = 3, .context = 2}, folder_ / "context");
}

// Dropout on the device draws from the device's generator, which a checkpoint keeps.
TEST_F(SimDeviceParts, RandomStateOfTheDeviceIsResumed) {
  const Case cases[] = {{.name = "data", .dropout = 0.3},
                        {.name = "pipe", .stages = 2, .dropout = 0.3},
                        {.name = "tensor", .tensor = 2, .dropout = 0.3},
                        {.name = "tensor_sequence", .tensor = 2, .sequence_parallel = true, .dropout = 0.3},
                        {.name = "ring", .context = 2, .dropout = 0.3},
                        {.name = "ulysses", .context = 2, .context_kind = context::Kind::ulysses, .dropout = 0.3}};
  for (const Case& one : cases) {
    EXPECT_THAT(
        run_ranks(2,
                  [&](comm::World& world) {
                    start();
                    const mesh::Mesh mesh = mesh_of(world, one);
                    torch::manual_seed(world.rank() / one.tensor); // outside of split layers tensor ranks drop the same
                    const auto engine = initialize(world, options_of(one, sim::device(), mesh)).engine;
                    train(*engine, 2);
                    engine->save_checkpoint(folder_ / one.name, "saved");
                    const Seen expected = train(*engine, 2);
                    torch::manual_seed(99);
                    const auto resumed = initialize(world, options_of(one, sim::device(), mesh)).engine;
                    ASSERT_TRUE(resumed->load_checkpoint(folder_ / one.name, "saved"));
                    expect_same(train(*resumed, 2), expected);
                    EXPECT_THAT(sim::problems(), IsEmpty());
                  }),
        IsEmpty())
        << one.name;
  }
}

TEST_F(SimDeviceParts, EvaluationLogitsAndTheClientsOwnLoop) {
  on_ranks(2, [&](comm::World& world) {
    start();
    const Case one{.name = ""};
    const auto cpu = initialize(world, options_of(one, at::kCPU)).engine;
    const auto device = initialize(world, options_of(one, sim::device())).engine;
    const data::Batch batch = Counting().get(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    EXPECT_EQ(device->eval_batch(batch).item<double>(), cpu->eval_batch(batch).item<double>());
    for (int step = 0; step < 4; ++step) {
      for (Engine* engine : {cpu.get(), device.get()}) {
        engine->backward(engine->forward(batch));
        engine->step();
      }
    }
    EXPECT_EQ(device->loss(), cpu->loss());
    data::DataLoader on_cpu(std::make_shared<Counting>(),
                            data::DistributedSampler(192, {.rank = world.rank(), .replicas = 2}), 5);
    data::DataLoader on_device(std::make_shared<Counting>(),
                               data::DistributedSampler(192, {.rank = world.rank(), .replicas = 2}), 5);
    sim::reset_host_synchronisations();
    EXPECT_EQ(device->evaluate(on_device), cpu->evaluate(on_cpu));
    EXPECT_LE(sim::host_synchronisations(), 1) << testing::PrintToString(sim::host_synchronisation_names());
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// BatchNorm's buffers are on the device and broadcast there.
TEST_F(SimDeviceParts, ModuleBuffers) {
  on_ranks(2, [&](comm::World& world) {
    start();
    const auto run = [&](at::Device on) {
      torch::manual_seed(3);
      torch::nn::Sequential model(torch::nn::Linear(8, 6), torch::nn::BatchNorm1d(6), torch::nn::Linear(6, 31));
      InitializeOptions options;
      options.device = on;
      options.config = small_config(48, 2);
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable {
        return at::cross_entropy_loss(model->forward(batch.input().to(at::kFloat)), batch.target().select(1, 0));
      };
      options.training_data = std::make_shared<Counting>();
      const auto engine = initialize(world, options).engine;
      Seen seen = train(*engine);
      for (const at::Tensor& buffer : engine->module().buffers()) {
        seen.weights.push_back(buffer.cpu());
      }
      return seen;
    };
    expect_same(run(sim::device()), run(at::kCPU));
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

TEST_F(SimDeviceParts, GeneratedText) {
  on_ranks(1, [&](comm::World&) {
    start();
    models::Gpt model(small_gpt());
    const generate::SampleOptions options{.tokens = 12, .choice = {.temperature = 0.8, .top_k = 5}, .seed = 4};
    const auto expected = generate::sample(model.ptr(), {1, 2, 3}, options);
    model->to(at::kCPU);
    device::move(*model, sim::device());
    EXPECT_EQ(generate::sample(model.ptr(), {1, 2, 3}, options), expected);
  });
}

TEST_F(SimDeviceParts, RanksOnDifferentKindsOfDeviceAreRefused) {
  on_ranks(2, [&](comm::World& world) {
    start();
    try {
      initialize(world, options_of({.name = ""}, world.rank() == 0 ? at::Device(at::kCPU) : sim::device()));
      ADD_FAILURE() << "made";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 and rank 0 differ in the kind of device"));
    }
    try { // one rank's number is wrong, both are told
      initialize(world, options_of({.name = ""}, world.rank() == 0 ? at::Device(c10::kPrivateUse1) : sim::device(3)));
      ADD_FAILURE() << "made";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("rank 1: InitializeOptions::device is sim:3, but libtorch sees 1 of that kind"));
    }
    EXPECT_EQ(initialize(world, options_of({.name = ""}, at::Device(c10::kPrivateUse1))).engine->device(),
              sim::device())
        << "with its number";
  });
}

// Losses are near those of the CPU with autocast or without it, so the types are looked at.
TEST_F(SimDeviceParts, AutocastLowersActivationsOnTheDevice) {
  on_ranks(1, [&](comm::World& world) {
    start();
    for (const at::Device device : {at::Device(at::kCPU), sim::device()}) {
      for (const bool autocast : {true, false}) {
        InitializeOptions options = options_of({.name = "", .autocast = autocast}, device);
        models::Gpt model(small_gpt());
        std::vector<at::ScalarType> types;
        options.model = model.ptr();
        options.loss = [&, model](const data::Batch& batch) mutable {
          const at::Tensor logits = model->forward(batch.input());
          types.push_back(logits.scalar_type());
          EXPECT_EQ(logits.device(), device);
          return models::token_loss({logits}, {batch.target()});
        };
        const auto engine = initialize(world, options).engine;
        engine->train_batch();
        EXPECT_THAT(types, testing::AllOf(testing::SizeIs(2), testing::Each(autocast ? at::kBFloat16 : at::kFloat)))
            << device;
        EXPECT_EQ(engine->module().parameters().front().scalar_type(), at::kFloat);
      }
    }
  });
}

// A loss that is not finite on one rank: both skip the step, without another wait.
TEST_F(SimDeviceParts, AStepThatIsNotFiniteIsSkipped) {
  on_ranks(2, [&](comm::World& world) {
    start();
    models::Gpt model(small_gpt());
    int calls = 0;
    InitializeOptions options;
    options.device = sim::device();
    options.config = small_config(48, 1);
    options.model = model.ptr();
    options.loss = [&, model](const data::Batch& batch) mutable {
      const double factor = ++calls == 2 && world.rank() == 1 ? NAN : 1;
      return model->loss(batch.input(), batch.target()) * factor;
    };
    options.training_data = std::make_shared<Counting>();
    const auto engine = initialize(world, options).engine;
    for (int i = 0; i < 3; ++i) {
      step(*engine, [&] { engine->train_batch(); });
      EXPECT_EQ(engine->skipped_steps(), i == 0 ? 0 : 1);
    }
    EXPECT_TRUE(std::isfinite(engine->loss()));
  });
}

} // namespace
} // namespace trireme::engine
