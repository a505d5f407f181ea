// "bf16": {"enabled": "auto"}: all ranks agree, and a checkpoint keeps its type.
#include "small_run.h"

#include <trireme/engine/resolve_precision.h>
#include <trireme/precision/half_products.h>

#include <tests/support/run_ranks.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using precision::Type;
using test::on_ranks;
using test::run_ranks;

precision::PrecisionOptions undecided() {
  precision::PrecisionOptions options;
  options.bf16_if_faster = true;
  return options;
}

TEST(ResolvePrecisionTest, Bf16MustBeWorthIt) {
  EXPECT_TRUE((models::StepSeconds{1.0, 0.5}.bf16_is_faster()));
  EXPECT_FALSE((models::StepSeconds{1.0, 0.99}.bf16_is_faster()));
  EXPECT_FALSE((models::StepSeconds{1.0, 1.3}.bf16_is_faster()));
}

TEST(ResolvePrecisionTest, MeasuresBothTypesAndLeavesRandomNumbersAlone) {
  torch::manual_seed(4);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(4);
  const models::StepSeconds step = models::time_small_gpt(at::kCPU);
  EXPECT_GT(step.fp32, 0);
  EXPECT_GT(step.bf16, 0);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

// Neither a flag of the processor nor one rank alone decides.
TEST(ResolvePrecisionTest, WhatAllRanksMeasuredDecides) {
  on_ranks(3, [](comm::World& world) {
    for (const double slow : {1.0, 9.0}) { // seconds in bf16 on the last rank; fp32 takes 2 everywhere
      precision::PrecisionOptions mine = undecided();
      resolve_precision(mine, world.group(), at::kCPU, std::nullopt,
                        [&](at::Device) { return models::StepSeconds{2.0, world.rank() == 2 ? slow : 1.0}; });
      EXPECT_EQ(mine.compute, slow == 1.0 ? Type::bf16 : Type::fp32);
      EXPECT_FALSE(mine.bf16_if_faster);
    }
  });
}

TEST(ResolvePrecisionTest, ProductsAreMeasuredAsAnEngineMakesThem) {
  if (precision::has_fast_products(at::kBFloat16)) {
    GTEST_SKIP() << "an engine leaves products to libtorch here";
  }
  on_ranks(1, [](comm::World& world) {
    precision::PrecisionOptions mine = undecided();
    resolve_precision(mine, world.group(), at::kCPU, std::nullopt, [](at::Device) {
      const auto mm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
      EXPECT_THAT(mm.dumpComputedTable(), testing::HasSubstr("half_products.cpp"));
      return models::StepSeconds{1.0, 2.0};
    });
  });
}

TEST(ResolvePrecisionTest, AllRanksAgreeAndTrain) {
  on_ranks(2, [](comm::World& world) {
    precision::PrecisionOptions mine = undecided();
    resolve_precision(mine, world.group(), at::kCPU);
    EXPECT_FALSE(mine.bf16_if_faster);
    EXPECT_NE(mine.compute, Type::fp16);
    at::Tensor types = torch::tensor({static_cast<int64_t>(mine.compute)});
    world.group().all_reduce(types).wait();
    EXPECT_EQ(types.item<int64_t>(), 2 * static_cast<int64_t>(mine.compute));

    config::EngineConfig config = small_config(48, 1);
    config.precision.bf16_if_faster = true;
    SmallRun run(world, config);
    EXPECT_NE(run.model->parameters()[0].scalar_type(), torch::kHalf);
    EXPECT_GT(run.engine().train_batch().item<double>(), 0);
  });
}

TEST(ResolvePrecisionTest, ACheckpointKeepsItsType) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_resolve_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    for (const Type type : {Type::bf16, Type::fp32}) {
      config::EngineConfig config = small_config(48, 1);
      config.precision.compute = type;
      SmallRun run(world, config);
      run.engine().train_batch();
      const fs::path here = folder / precision::type_name(type);
      run.engine().save_checkpoint(here);
      for (const fs::path& place : {here, here / "global_step1"}) {
        precision::PrecisionOptions again = undecided();
        resolve_precision(again, world.group(), at::kCPU, place);
        EXPECT_EQ(again.compute, type) << place;
      }
    }
    precision::PrecisionOptions fresh = undecided();
    resolve_precision(fresh, world.group(), at::kCPU, folder / "nothing here");
    EXPECT_FALSE(fresh.bf16_if_faster) << "measured, where nothing was saved";
  });
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
