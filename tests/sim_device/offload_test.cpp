// Masters and states on the host of a device: the bits of the CPU, which steps with the same kernels, without a race
// and without a read of the device's memory.
#include "offload_case.h"

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using offload::Place;
using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

int all_steps() {
  return std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 6;
}

// Trains on the CPU without offload, and on the device with it; then saves in the middle and resumes.
void compare_with_cpu(comm::World& world, const Offloaded& given, const fs::path& folder, int steps) {
  start_single_threaded();
  Offloaded one = given;
  one.files = folder / "files";
  const bool other_norms = has_other_norms(world, one);
  if (other_norms) {
    one.run.clipping = 0;
  }
  const auto same = [&](const Seen& seen, const Seen& expected) {
    other_norms ? expect_same_but_norms(seen, expected) : expect_same(seen, expected);
  };
  Seen cpu;
  const auto on_cpu = engine_of(world, one, at::kCPU);
  train_steps(*on_cpu, steps, cpu);
  add_weights(cpu, *on_cpu);
  Seen seen;
  auto saving = engine_of(world, one, sim::device());
  train_steps(*saving, steps / 2, seen);
  saving->save_checkpoint(folder / "saved");
  Seen resumed = seen;
  train_steps(*saving, steps - steps / 2, seen);
  add_weights(seen, *saving);
  same(seen, cpu);
  EXPECT_EQ(saving->offload_traffic().has_value(), one.states == Place::nvme || one.parameters == Place::nvme);
  saving.reset(); // its files are its own
  const auto again = engine_of(world, one, sim::device());
  ASSERT_TRUE(again->load_checkpoint(folder / "saved"));
  train_steps(*again, steps - steps / 2, resumed);
  add_weights(resumed, *again);
  same(resumed, cpu);
  EXPECT_THAT(sim::problems(), IsEmpty());
}

void compare_ranks(const Offloaded& one, int ranks, int steps) {
  const fs::path folder = scratch(concat("offload_", one.run.name, ranks).c_str());
  EXPECT_THAT(run_ranks(ranks, [&](comm::World& world) { compare_with_cpu(world, one, folder, steps); }), IsEmpty())
      << one.run.name << ", " << ranks << " ranks";
  fs::remove_all(folder);
}

class SimDeviceOffloadTest : public testing::TestWithParam<Offloaded> {};

TEST_P(SimDeviceOffloadTest, IsEqualToTheCpu) {
  for (const int replicas : {1, 2}) {
    compare_ranks(GetParam(), replicas * GetParam().run.ranks_of_one_model(), all_steps());
  }
}

std::vector<Offloaded> offloaded() {
  std::vector<Offloaded> all;
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [type, name] :
         {std::pair(Type::fp32, "fp32"), std::pair(Type::bf16, "bf16"), std::pair(Type::fp16, "fp16")}) {
      all.push_back({.run = {.name = concat("zero", stage, '_', name), .zero_stage = stage, .type = type}});
    }
  }
  for (const auto& [type, name] : {std::pair(Type::fp32, "fp32"), std::pair(Type::bf16, "bf16")}) {
    all.push_back(
        {.run = {.name = concat("parameters_", name), .zero_stage = 3, .type = type}, .parameters = Place::host});
  }
  for (const auto& [type, name] :
       {std::pair(Type::fp32, "fp32"), std::pair(Type::bf16, "bf16"), std::pair(Type::fp16, "fp16")}) {
    all.push_back(
        {.run = {.name = concat("states_in_files_", name), .zero_stage = 2, .type = type}, .states = Place::nvme});
    all.push_back({.run = {.name = concat("parameters_in_files_", name), .zero_stage = 3, .type = type},
                   .parameters = Place::nvme,
                   .states = Place::nvme});
  }
  for (const auto& [type, name] :
       {std::pair(Type::fp32, "fp32"), std::pair(Type::bf16, "bf16"), std::pair(Type::fp16, "fp16")}) {
    for (const auto& [place, where] : {std::pair(Place::host, "on_host"), std::pair(Place::nvme, "in_files")}) {
      all.push_back({.run = {.name = concat("only_parameters_", where, '_', name), .zero_stage = 3, .type = type},
                     .parameters = place,
                     .states = Place::device});
    }
  }
  all.push_back(
      {.run = {.name = "parameters_and_half_of_zero3", .zero_stage = 3}, .ratio = 0.5, .parameters = Place::host});
  all.push_back({.run = {.name = "parameters_and_half_in_files_bf16", .zero_stage = 3, .type = Type::bf16},
                 .ratio = 0.5,
                 .parameters = Place::nvme,
                 .states = Place::nvme});
  all.push_back({.run = {.name = "half_of_zero0"}, .ratio = 0.5});
  all.push_back({.run = {.name = "half_of_zero2_bf16", .zero_stage = 2, .type = Type::bf16}, .ratio = 0.5});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceOffloadTest, testing::ValuesIn(offloaded()),
                         [](const auto& info) { return info.param.run.name; });

class SimDeviceOffloadKindsTest : public testing::TestWithParam<std::pair<Offloaded, int>> {};

TEST_P(SimDeviceOffloadKindsTest, IsEqualToTheCpu) {
  compare_ranks(GetParam().first, GetParam().second, 6);
}

std::vector<std::pair<Offloaded, int>> kinds() {
  using optim::StateType;
  return {
      {{.run = {.name = "lamb_zero1", .zero_stage = 1, .optimizer = "LAMB"}}, 2},
      {{.run = {.name = "lamb_zero2_bf16", .zero_stage = 2, .type = Type::bf16, .optimizer = "LAMB"}}, 2},
      {{.run = {.name = "sgd", .zero_stage = 2, .optimizer = "SGD"}}, 2},
      {{.run = {.name = "states_bf16", .zero_stage = 1, .states = StateType::bf16}}, 2},
      {{.run = {.name = "states_int8", .type = Type::bf16, .states = StateType::int8}}, 2},
      {{.run = {.name = "quarter_int8", .states = StateType::int8}, .ratio = 0.25}, 1},
      {{.run = {.name = "one_micro_batch", .zero_stage = 2, .accumulation = 1}}, 2},
      {{.run = {.name = "four_micro_batches", .zero_stage = 3, .type = Type::bf16, .accumulation = 4}}, 2},
      {{.run = {.name = "no_clipping", .zero_stage = 1, .clipping = 0}}, 2},
      {{.run = {.name = "step_in_backward", .clipping = 0, .step_in_backward = true}}, 2},
      {{.run = {.name = "step_in_backward_zero2", .zero_stage = 2, .clipping = 0, .step_in_backward = true}}, 2},
      {{.run = {.name = "not_pinned", .zero_stage = 2, .type = Type::bf16}, .pinned = false}, 2},
      {{.run = {.name = "half_in_files", .type = Type::bf16}, .ratio = 0.5, .states = Place::nvme}, 2},
      {{.run = {.name = "lamb_in_files", .zero_stage = 3, .optimizer = "LAMB"},
        .parameters = Place::nvme,
        .states = Place::nvme},
       2},
      {{.run = {.name = "parameters_in_files_not_pinned", .zero_stage = 3}, .pinned = false, .parameters = Place::nvme},
       2},
      {{.run = {.name = "copies_of_two_in_files", .zero_stage = 3},
        .parameters = Place::nvme,
        .shard_size = 2,
        .states = Place::nvme},
       4},
      {{.run = {.name = "copies_of_two", .zero_stage = 2, .type = Type::bf16}, .shard_size = 2}, 4},
      {{.run = {.name = "copies_of_two_zero3", .zero_stage = 3}, .parameters = Place::host, .shard_size = 2}, 4},
      {{.run = {.name = "pipe_zero1", .zero_stage = 1, .accumulation = 4, .stages = 2}}, 4},
      {{.run = {.name = "pipe_zero2_bf16", .zero_stage = 2, .type = Type::bf16, .accumulation = 4, .stages = 2}}, 4},
      {{.run = {.name = "pipe_zero3", .zero_stage = 3, .accumulation = 4, .stages = 2}, .parameters = Place::host}, 4},
      {{.run = {.name = "interleaved",
                .accumulation = 4,
                .stages = 2,
                .schedule = pipeline::ScheduleKind::interleaved,
                .chunks = 2}},
       2},
      {{.run = {.name = "lamb_only_parameters", .zero_stage = 3, .optimizer = "LAMB"},
        .parameters = Place::host,
        .states = Place::device},
       2},
      {{.run = {.name = "lamb_only_parameters_in_files_bf16", .zero_stage = 3, .type = Type::bf16, .optimizer = "LAMB"},
        .parameters = Place::nvme,
        .states = Place::device},
       2},
      {{.run = {.name = "states_int8_only_parameters", .zero_stage = 3, .states = StateType::int8},
        .parameters = Place::host,
        .states = Place::device},
       2},
      {{.run = {.name = "only_parameters_not_pinned", .zero_stage = 3},
        .pinned = false,
        .parameters = Place::host,
        .states = Place::device},
       2},
      {{.run = {.name = "only_parameters_four_micro_batches", .zero_stage = 3, .type = Type::bf16, .accumulation = 4},
        .parameters = Place::nvme,
        .states = Place::device},
       2},
      {{.run = {.name = "copies_of_two_only_parameters", .zero_stage = 3},
        .parameters = Place::host,
        .shard_size = 2,
        .states = Place::device},
       4},
      {{.run = {.name = "pipe_only_parameters", .zero_stage = 3, .accumulation = 4, .stages = 2},
        .parameters = Place::host,
        .states = Place::device},
       4},
      {{.run = {.name = "recompute_zero3", .zero_stage = 3, .recompute = 1}, .parameters = Place::host}, 2},
      {{.run = {.name = "tensor_sequence_zero2", .zero_stage = 2, .tensor = 2, .sequence_parallel = true}}, 4},
      {{.run = {.name = "ring_zero3", .zero_stage = 3, .context = 2}, .parameters = Place::host}, 2},
  };
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceOffloadKindsTest, testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.first.run.name; });

// On the last rank the first step has a loss that is not finite, the fourth gradients.
Seen with_spoiled_steps(comm::World& world, const Offloaded& one, at::Device device) {
  InitializeOptions options = options_of(one, device, mesh_of(world, one.run));
  models::Gpt model(small_gpt());
  options.model = model.ptr();
  const at::Tensor bias = model->named_parameters()["transformer.ln_f.bias"];
  int calls = 0;
  options.loss = [&, model](const data::Batch& batch) mutable {
    const at::Tensor loss = model->loss(batch.input(), batch.target());
    const int64_t step = calls++ / one.run.accumulation;
    if (world.rank() < world.size() - 1 || (step != 0 && step != 3)) {
      return loss;
    }
    const at::Tensor x = bias.to(at::kFloat);
    return step == 0 ? loss * std::numeric_limits<float>::infinity() : loss + (x - x.detach()).sum() * 3e38 * 10;
  };
  const auto engine = initialize(world, options).engine;
  Seen seen;
  for (int step = 0; step < 6; ++step) {
    engine->train_batch();
    for (const double number : {engine->loss(), engine->get_global_grad_norm().value_or(-1), engine->get_lr(),
                                static_cast<double>(engine->skipped_steps())}) {
      seen.numbers.push_back(std::isfinite(number) ? number : -7);
    }
  }
  EXPECT_EQ(engine->skipped_steps(), 2);
  add_weights(seen, *engine);
  return seen;
}

TEST(SimDeviceOffload, SkippedStepsChangeNothing) {
  const fs::path files = scratch("skipped_steps");
  for (const Offloaded& one : {Offloaded{.run = {.name = "fp16", .zero_stage = 2, .type = Type::fp16}},
                               Offloaded{.run = {.name = "bf16", .zero_stage = 1, .type = Type::bf16}},
                               Offloaded{.run = {.name = "half", .zero_stage = 2}, .ratio = 0.5},
                               Offloaded{.run = {.name = "parameters", .zero_stage = 3, .type = Type::fp16},
                                         .parameters = Place::host,
                                         .states = Place::device},
                               Offloaded{.run = {.name = "half_and_parameters", .zero_stage = 3, .type = Type::fp16},
                                         .ratio = 0.5,
                                         .parameters = Place::host},
                               Offloaded{.run = {.name = "all_in_files", .zero_stage = 3, .type = Type::fp16},
                                         .parameters = Place::nvme,
                                         .states = Place::nvme,
                                         .files = files}}) {
    on_both(2, [&](comm::World& world, at::Device device) { return with_spoiled_steps(world, one, device); });
  }
  fs::remove_all(files);
}

// What no rank uses keeps its value, also in the memory from which parameters return.
TEST(SimDeviceOffload, UnusedParametersStay) {
  for (const Type type : {Type::fp32, Type::bf16}) {
    on_both(1, [&](comm::World& world, at::Device device) {
      const Offloaded one{.run = {.name = "unused", .type = type}};
      InitializeOptions options = options_of(one, device, mesh_of(world, one.run));
      models::Gpt model(small_gpt());
      const at::Tensor unused = model->register_parameter("unused", torch::ones({77}));
      const at::Tensor sometimes = model->register_parameter("sometimes", torch::ones({33}));
      options.model = model.ptr();
      int calls = 0;
      options.loss = [&, model](const data::Batch& batch) mutable {
        const at::Tensor loss = model->loss(batch.input(), batch.target());
        return ++calls % 4 < 2 ? loss + sometimes.to(at::kFloat).square().sum() * 0.01 : loss;
      };
      const auto engine = initialize(world, options).engine;
      Seen seen;
      train_steps(*engine, 5, seen);
      EXPECT_TRUE(engine->module().named_parameters()["unused"].detach().cpu().eq(1).all().item<bool>());
      EXPECT_FALSE(engine->module().named_parameters()["sometimes"].detach().cpu().eq(1).any().item<bool>());
      add_weights(seen, *engine);
      return seen;
    });
  }
}

// Also in a shard that comes to the device with values that no kernel writes there.
TEST(SimDeviceOffload, UnusedParametersOfUnitsStay) {
  const fs::path files = scratch("unused_of_units");
  for (const Type type : {Type::fp32, Type::bf16}) {
    for (const Place parameters : {Place::host, Place::nvme}) {
      on_both(2, [&](comm::World& world, at::Device device) {
        const Offloaded one{.run = {.name = "unused", .zero_stage = 3, .type = type},
                            .parameters = parameters,
                            .states = Place::device,
                            .files = files};
        InitializeOptions options = options_of(one, device, mesh_of(world, one.run));
        models::Gpt model(small_gpt());
        model->named_modules()["transformer.wte"]->register_parameter("unused", torch::ones({77}));
        options.model = model.ptr();
        options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
        const auto engine = initialize(world, options).engine;
        Seen seen;
        train_steps(*engine, 3, seen);
        add_weights(seen, *engine);
        EXPECT_TRUE(std::any_of(seen.weights.begin(), seen.weights.end(), [](const at::Tensor& weight) {
          return weight.numel() == 77 && weight.eq(1).all().item<bool>();
        }));
        return seen;
      });
    }
  }
  fs::remove_all(files);
}

// A checkpoint fits a run without offload, and the other way round.
TEST(SimDeviceOffload, CheckpointsFitOtherPlaces) {
  const fs::path folder = scratch("offload_places");
  for (const Offloaded& one :
       {Offloaded{.run = {.name = "saved", .zero_stage = 2}},
        Offloaded{.run = {.name = "saved", .zero_stage = 2, .type = Type::bf16}},
        Offloaded{.run = {.name = "saved", .zero_stage = 3}, .parameters = Place::host, .states = Place::device},
        Offloaded{.run = {.name = "saved", .zero_stage = 3, .type = Type::bf16},
                  .parameters = Place::host,
                  .states = Place::device}}) {
    on_ranks(2, [&](comm::World& world) {
      start_single_threaded();
      const mesh::Mesh mesh = mesh_of(world, one.run);
      const auto plain = [&] { return initialize(world, options_of(one.run, sim::device(), mesh)).engine; };
      Seen expected;
      const auto whole = plain();
      train_steps(*whole, 6, expected);
      add_weights(expected, *whole);
      const auto goes_on = [&](Engine& first, Engine& second, Engine& third) {
        Seen seen;
        train_steps(first, 2, seen);
        first.save_checkpoint(folder, "first");
        ASSERT_TRUE(second.load_checkpoint(folder, "first"));
        train_steps(second, 2, seen);
        second.save_checkpoint(folder, "second");
        ASSERT_TRUE(third.load_checkpoint(folder, "second"));
        train_steps(third, 2, seen);
        add_weights(seen, third);
        expect_same(seen, expected);
      };
      goes_on(*plain(), *engine_of(world, one, sim::device()), *plain());
      goes_on(*engine_of(world, one, sim::device()), *plain(), *engine_of(world, one, sim::device()));
      EXPECT_THAT(sim::problems(), IsEmpty());
    });
    fs::remove_all(folder);
  }
}

TEST(SimDeviceOffload, StatesInFilesAreSteppedOnTheHost) {
  const fs::path folder = scratch("offload_files");
  for (const int stage : {1, 3}) {
    on_both(2, [&](comm::World& world, at::Device device) {
      InitializeOptions options = options_of({.name = "files", .zero_stage = stage, .type = Type::bf16}, device);
      if (!device.is_cpu()) {
        options.state_store = [&, rank = world.rank(), stores = 0]() mutable {
          return std::make_unique<FilesOfTheHost>(folder / concat(rank, ".", stores++));
        };
      }
      const auto engine = initialize(world, options).engine;
      Seen seen;
      train_steps(*engine, 4, seen);
      add_weights(seen, *engine);
      return seen;
    });
  }
  fs::remove_all(folder);
}

// What the device keeps: with ZeRO 2 on one rank neither masters, states nor gradients.
TEST(SimDeviceOffload, TheDeviceKeepsParametersOnly) {
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    const auto bytes_after = [&](const Offloaded& one, bool offloads) {
      const int64_t before = sim::memory().bytes;
      const mesh::Mesh mesh = mesh_of(world, one.run);
      const auto engine =
          initialize(world, offloads ? options_of(one, sim::device(), mesh) : options_of(one.run, sim::device(), mesh))
              .engine;
      engine->train_batch();
      return std::pair(sim::memory().bytes - before, engine->num_parameters());
    };
    const Offloaded zero2{.run = {.name = "zero2", .zero_stage = 2, .type = Type::bf16, .accumulation = 1}};
    const auto [plain, parameters] = bytes_after(zero2, false);
    const auto [offloaded, same] = bytes_after(zero2, true);
    EXPECT_GE(plain, parameters * (2 + 2 + 12));
    EXPECT_LT(offloaded, parameters * 2 + parameters) << "parameters in bf16, and what is small";
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

void expect_refused(const Offloaded& one, const std::function<void(InitializeOptions&)>& change,
                    const std::string& message) {
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    InitializeOptions options = options_of(one, sim::device(), mesh_of(world, one.run));
    if (change) {
      change(options);
    }
    try {
      initialize(world, options);
      ADD_FAILURE() << "was not refused: " << message;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  });
}

TEST(SimDeviceOffload, WhatDoesNotGoTogetherIsRefused) {
  const Offloaded plain{.run = {.name = "plain"}};
  expect_refused(plain, [](InitializeOptions& options) { options.config.averaging.every = 2; }, "parameter_averaging");
  expect_refused({.run = {.name = "lamb", .optimizer = "LAMB"}, .ratio = 0.5}, nullptr,
                 "needs the norms of whole parameters");
  expect_refused({.run = {.name = "lamb", .optimizer = "LAMB"}, .delayed = true}, nullptr, "delayed_update with LAMB");
  expect_refused({.run = {.name = "delayed"}, .ratio = 0.5, .delayed = true}, nullptr,
                 "delayed_update with a ratio below 1");
  expect_refused({.run = {.name = "parameters"}, .parameters = Place::host}, nullptr,
                 "offload_param with ZeRO stage 0");
  expect_refused(
      {.run = {.name = "lamb", .zero_stage = 3, .optimizer = "LAMB"}, .ratio = 0.5, .parameters = Place::host}, nullptr,
      "needs the norms of whole parameters");
  expect_refused({.run = {.name = "delayed"}, .delayed = true, .states = Place::device}, nullptr,
                 "delayed_update with optimizer states on the GPU");
}

} // namespace
} // namespace trireme::engine
