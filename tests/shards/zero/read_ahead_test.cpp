// Shards that are elsewhere are read two stages ahead of their use, in the order of the pass.
#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/shards/zero/parameter_coordinator.h>

#include <tests/support/recording_store.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <string>

namespace trireme::zero {
namespace {

using test::on_ranks;
using test::run_ranks;

constexpr int kReadUnits = 6;

/// A module for each unit, their flat buffer, and the coordinator.
struct Units {
  std::vector<torch::nn::Linear> modules;
  std::shared_ptr<test::RecordingStore> store = std::make_shared<test::RecordingStore>(
      [](int64_t bucket) { return kReadUnits - 1 - bucket; }); // the last unit's bucket is the first
  std::unique_ptr<bucket::FlatParameters> flat;
  std::shared_ptr<ParameterCoordinator> coordinator;

  Units(const comm::Group& group, int64_t read_ahead) {
    bucket::NamedTensors parameters;
    for (int i = 0; i < kReadUnits; ++i) {
      modules.emplace_back(torch::nn::LinearOptions(4, 4).bias(false));
      parameters.emplace_back(concat("weight", i), modules.back()->weight);
    }
    const auto unit_of = [&](const at::Tensor& parameter) {
      int64_t unit = 0;
      while (!modules[static_cast<size_t>(unit)]->weight.is_same(parameter)) {
        ++unit;
      }
      return unit;
    };
    flat = std::make_unique<bucket::FlatParameters>(
        parameters, bucket::LayoutOptions{},
        [](int64_t numel, at::ScalarType type) { return torch::empty({numel}, type); },
        bucket::FlatOptions{
            .shard_gradients = true, .shard_parameters = true, .unit_of = unit_of, .parameter_store = store});
    for (int64_t b = 0; b < kReadUnits; ++b) {
      flat->move_in(b);
      flat->update_shard(b);
      flat->release(b);
    }
    coordinator = std::make_shared<ParameterCoordinator>(std::vector{flat.get()}, parallel::ReduceGroups(group, {}),
                                                         std::nullopt, [](const auto&) { return false; });
    for (const auto& module : modules) {
      coordinator->add(*module, [](const at::Tensor& parameter) { return parameter.numel(); });
    }
    coordinator->read_ahead(read_ahead);
    store->take();
  }
  /// To and fro; returns what was asked of the store on the way there and on the way back.
  std::pair<std::string, std::string> pass() {
    coordinator->begin(Pass::training);
    for (int i = 0; i < kReadUnits; ++i) {
      coordinator->enter(*modules[static_cast<size_t>(i)]);
    }
    const std::string there = store->take();
    for (int i = kReadUnits - 1; i >= 0; --i) {
      coordinator->enter(*modules[static_cast<size_t>(i)]);
    }
    const std::string back = store->take();
    coordinator->release_all();
    return {there, back};
  }
};

TEST(ReadAheadTest, UnitsAreReadInTheOrderOfThePassBeforeTheyAreGathered) {
  on_ranks(1, [&](comm::World& world) {
    Units units(world.group(), 2);
    EXPECT_EQ(units.pass().first, "r0 g0 r1 g1 r2 g2 r3 g3 r4 g4 r5 g5") << "nothing is known yet";
    const auto [there, back] = units.pass();
    EXPECT_EQ(there, "r0 r1 g0 g1 r2 r3 g2 r3 r4 g3 r4 r5 g4 r5 r3 g5 r3 r2");
    EXPECT_EQ(back, "r3 r2 g3 r2 r1 g2 r1 r0 g1 r0 g0");
  });
}

// An embedding is used at the beginning of a pass only.
TEST(ReadAheadTest, TheEndOfAPassReadsWhatTheNextOneBeginsWith) {
  on_ranks(1, [&](comm::World& world) {
    Units units(world.group(), 3);
    const auto pass = [&](std::vector<int> used) {
      units.coordinator->begin(Pass::training);
      for (const int i : used) {
        units.store->take();
        units.coordinator->enter(*units.modules[static_cast<size_t>(i)]);
      }
      return units.store->take(); // by the last one
    };
    EXPECT_EQ(pass({0, 1, 2, 2, 1}), "r1 g1") << "nothing is known yet";
    EXPECT_EQ(pass({0, 1, 2, 2, 1}), "r0");
    EXPECT_EQ(pass({0, 1, 3}), "r3 g3") << "another way: nothing is known of its end";
  });
}

TEST(ReadAheadTest, WithoutAStoreThatReadsAheadNothingIsNamed) {
  on_ranks(1, [&](comm::World& world) {
    Units units(world.group(), 0);
    units.pass();
    EXPECT_EQ(units.pass().first, "g0 g1 g2 g3 g4 g5");
  });
}

// Of unit 0, whose bucket is the last.
const void* shard_of_first(Units& units) {
  return units.flat->owned_data(kReadUnits - 1, units.flat->plan().mine(kReadUnits - 1)).const_data_ptr();
}

TEST(ReadAheadTest, ARankAloneComputesWithTheMemoryOfTheStore) {
  on_ranks(1, [&](comm::World& world) {
    Units units(world.group(), 2);
    const at::Tensor weight = units.modules[0]->weight;
    units.coordinator->begin(Pass::training);
    units.coordinator->enter(*units.modules[0]);
    EXPECT_EQ(weight.const_data_ptr(), shard_of_first(units)) << "was copied";
    units.coordinator->release_all();
    EXPECT_FALSE(device::has_memory(weight));
  });
}

TEST(ReadAheadTest, WhatARankAloneChangesInGatheredParametersIsLost) {
  on_ranks(1, [&](comm::World& world) {
    const torch::NoGradGuard no_grad;
    Units units(world.group(), 2);
    const at::Tensor weight = units.modules[0]->weight;
    units.coordinator->pin({weight});
    const at::Tensor before = weight.clone();
    for (const bool in_use : {false, true}) { // before the pin: then it shows the store's memory
      units.coordinator->unpin({weight}, std::nullopt);
      units.coordinator->release_all();
      if (in_use) {
        units.coordinator->begin(Pass::training);
        units.coordinator->enter(*units.modules[0]);
      }
      units.coordinator->pin({weight});
      EXPECT_TRUE(weight.equal(before));
      at::Tensor(weight).fill_(7);
    }
    units.coordinator->unpin({weight}, std::nullopt);
    units.coordinator->release_all();
    units.coordinator->rewrite({weight}, [&] {
      EXPECT_TRUE(weight.equal(before));
      at::Tensor(weight).fill_(8);
    });
    units.coordinator->enter(*units.modules[0]);
    EXPECT_TRUE(weight.equal(torch::full_like(weight, 8)));
  });
}

} // namespace
} // namespace trireme::zero
