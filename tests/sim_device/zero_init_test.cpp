// zero::Init on the simulated device: a model that is sharded there module by module, as it is built.
#include "engine_case.h"

#include <tests/support/run_ranks.h>

#include <trireme/device/absent_memory.h>
#include <trireme/device/choose.h>
#include <trireme/shards/zero/init.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <type_traits>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

struct Early {
  models::Gpt model{nullptr};
  std::shared_ptr<Engine> engine;
};

Early built(comm::World& world, const Case& one, at::Device device, bool with_init = true) {
  Early early;
  {
    std::optional<zero::Init> init;
    if (with_init) {
      init.emplace(world.group(), one.type, device);
    }
    early.model = models::Gpt(small_gpt());
  }
  InitializeOptions options = options_of(one, device);
  options.model = early.model.ptr();
  options.loss = [model = early.model](const data::Batch& batch) mutable {
    return model->loss(batch.input(), batch.target());
  };
  early.engine = initialize(world, options).engine;
  return early;
}

class SimDeviceZeroInit : public testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(SimDeviceZeroInit, IsEqualToTheCpu) {
  const auto& [ranks, one] = GetParam();
  on_ranks(ranks, [&, &one = one](comm::World& world) {
    start();
    const Seen expected = train(*built(world, one, at::kCPU, /*with_init=*/false).engine);
    expect_same(train(*built(world, one, at::kCPU).engine), expected);
    expect_same(train(*built(world, one, sim::device()).engine), expected);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, SimDeviceZeroInit,
    testing::Combine(testing::Values(2, 3),
                     testing::Values(Case{.name = "zero3", .zero_stage = 3},
                                     Case{.name = "zero3_bf16", .zero_stage = 3, .type = precision::Type::bf16},
                                     Case{.name = "zero1", .zero_stage = 1})),
    [](const auto& info) { return concat(std::get<1>(info.param).name, "_", std::get<0>(info.param), "ranks"); });

// With a module of its own on its way there are: its parameters, the flat buffer that they are put into, and the shard.
TEST(SimDeviceZeroInitMemory, NoMoreThanAModuleIsWholeOnTheDevice) {
  on_ranks(4, [](comm::World& world) {
    start();
    models::GptOptions shape = small_gpt();
    shape.layers = 16;
    shape.hidden = 32;
    const zero::Init init(world.group(), precision::Type::fp32, sim::device());
    models::Gpt model(shape);
    int64_t whole = 0;
    int64_t block = 0;
    for (const at::Tensor& parameter : model->parameters()) {
      whole += parameter.numel() * 4;
    }
    for (const at::Tensor& parameter : model->transformer->h[0]->parameters()) {
      EXPECT_EQ(parameter.device(), sim::device());
      EXPECT_FALSE(device::has_memory(parameter));
      block += parameter.numel() * 4;
    }
    EXPECT_LE(sim::memory().bytes, whole / 4 + block);
    EXPECT_LE(sim::memory().peak, whole / 4 + 3 * block);
    EXPECT_LT(whole / 4 + 3 * block, whole / 2);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

TEST(SimDeviceZeroInitMemory, AModelOfAnotherDeviceIsRefused) {
  on_ranks(2, [](comm::World& world) {
    start(2);
    const Case one{.name = "", .zero_stage = 3};
    InitializeOptions options = options_of(one, sim::device(1));
    {
      const zero::Init init(world.group(), precision::Type::fp32, sim::device(0));
      options.model = models::Gpt(small_gpt()).ptr();
    }
    try {
      initialize(world, options);
      ADD_FAILURE() << "made";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("is sharded on sim:0, and the engine trains on sim:1"));
    }
  });
}

static_assert(!std::is_constructible_v<zero::Init, comm::Group>, "of some ranks only the caller knows the device");

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Init and initialize() that are told nothing choose alike.
TEST(SimDeviceZeroInitDefault, IsThatOfInitialize) {
  on_ranks(2, [](comm::World& world) {
    start();
    const Case one{.name = "", .zero_stage = 3};
    const auto options = [&] {
      InitializeOptions made = options_of(one, at::kCPU);
      made.device.reset();
      return made;
    };
    ::unsetenv("TRIREME_DEVICE");
    EXPECT_EQ(zero::Init(world, one.type).device(), world.device());
    ::setenv("TRIREME_DEVICE", "cpu", 1);
    const Seen expected = train(*initialize(world, options()).engine);
    InitializeOptions early = options();
    {
      const zero::Init init(world);
      EXPECT_TRUE(init.device().is_cpu());
      models::Gpt model(small_gpt());
      early.model = model.ptr();
      early.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
    }
    expect_same(train(*initialize(world, early).engine), expected);
    ::setenv("TRIREME_DEVICE", "cuda:127", 1); // a GPU that is not there
    const std::string words = refusal([&] { const zero::Init init(world); });
    EXPECT_THAT(words, testing::HasSubstr("device \"cuda:127\" is not available"));
    EXPECT_THAT(refusal([&] { initialize(world, options()); }),
                testing::HasSubstr("device \"cuda:127\" is not available"));
    { // named, it does not matter what the environment says
      const zero::Init init(world, one.type, sim::device());
      EXPECT_EQ(init.device(), sim::device());
    }
  });
}

TEST(SimDeviceZeroInitMemory, ParametersAreGatheredChangedAndSaved) {
  const std::filesystem::path folder = scratch("init");
  on_ranks(3, [&](comm::World& world) {
    start();
    const Case one{.name = "", .zero_stage = 3};
    const Early device = built(world, one, sim::device());
    const Early cpu = built(world, one, at::kCPU);
    for (const Early* early : {&device, &cpu}) {
      const torch::NoGradGuard no_grad;
      at::Tensor weight = early->model->named_parameters()["transformer.h.1.attn.c_attn.weight"];
      const auto whole = early->engine->gather_parameters({weight}, /*modifier_rank=*/1);
      EXPECT_EQ(weight.device(), early->engine->device());
      weight.fill_(0.01 * world.rank());
    }
    expect_same(train(*device.engine, 2), train(*cpu.engine, 2));
    device.engine->save_checkpoint(folder, "of_device");
    cpu.engine->save_checkpoint(folder, "of_cpu");
    const Seen expected = train(*cpu.engine, 2);
    expect_same(train(*device.engine, 2), expected);
    for (const at::Device to : {at::Device(at::kCPU), sim::device()}) {
      const Early again = built(world, one, to);
      ASSERT_TRUE(again.engine->load_checkpoint(folder, to.is_cpu() ? "of_device" : "of_cpu"));
      expect_same(train(*again.engine, 2), expected);
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
