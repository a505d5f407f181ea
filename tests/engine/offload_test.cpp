// Masters, states, gradients and parameters in files between uses: the same bits as in memory, at every stage and in
// pipelines.
#include "layered_run.h"

#include <trireme/base/file.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using offload::Place;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 20;

struct Layout {
  int ranks;
  int pipe;
  int stage;
  precision::Type type;
};

std::string name_of(const Layout& layout) {
  return concat(layout.ranks, "ranks_pipe", layout.pipe, "_zero", layout.stage,
                layout.type == precision::Type::bf16 ? "_bf16" : "_fp32");
}

struct Placement {
  offload::Options offload;
  activations::Options activations = {};
};

config::EngineConfig config_of(const Layout& layout, const Placement& placement) {
  config::EngineConfig config = zero_config(layout.stage, 2);
  config.precision.compute = layout.type;
  config.offload = placement.offload;
  config.activations = placement.activations;
  return config;
}

std::vector<double> train(LayeredRun& run, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(run.step());
  }
  return losses;
}

offload::Options placed(Place states, Place parameters, const fs::path& folder) {
  offload::Options options;
  options.optimizer.place = states;
  options.optimizer.nvme_path = folder / "nvme";
  options.optimizer.buffer_count = 3;
  options.optimizer.pipeline_read = options.optimizer.pipeline_write = parameters == Place::nvme;
  options.optimizer.fast_init = parameters == Place::nvme;
  options.parameters.place = parameters;
  options.parameters.nvme_path = folder / "nvme/."; // the same one
  options.parameters.buffer_count = 3;
  options.parameters.max_in_cpu = parameters == Place::nvme && states != Place::nvme ? 500 : 0;
  return options;
}

// Of ranks on the CPU, where the host is the device; tests/sim_device/placements_test.cpp has those of a device. No
// layer is recomputed: the head would add its gradient of the weight that it shares with the embedding by itself, and
// the sum of the two be another one in the last bits.
std::vector<Placement> placements(int stage, const fs::path& folder) {
  using activations::Way;
  const auto with = [&](Way way) {
    return activations::Options{.policy = way, .nvme_path = folder / "activations", .least_bytes = 0};
  };
  std::vector<Placement> found = {{placed(Place::nvme, Place::device, folder), with(Way::nvme)},
                                  {placed(Place::host, Place::device, folder)}};
  if (stage == 3) {
    found.push_back({placed(Place::nvme, Place::nvme, folder), with(Way::nvme)});
    found.push_back({placed(Place::device, Place::nvme, folder), with(Way::nvme)});
    found.push_back({placed(Place::host, Place::host, folder)});
    found.push_back({placed(Place::nvme, Place::host, folder)});
    found.push_back({placed(Place::host, Place::nvme, folder), with(Way::host)});
  }
  return found;
}

class OffloadTest : public testing::TestWithParam<Layout> {};

TEST_P(OffloadTest, EveryPlacementTrainsAndResumesAsInMemory) {
  const Layout layout = GetParam();
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  on_ranks(layout.ranks, [&](comm::World& world) {
    LayeredRun plain(world, config_of(layout, {}), layout.pipe);
    const std::vector<double> expected = train(plain, kSteps);
    int number = 0;
    for (const Placement& placement : placements(layout.stage, scratch.path)) {
      const offload::Options& offload = placement.offload;
      const std::string where = concat("placement ", number);
      const fs::path saved = scratch.path / concat("saved", number++);
      std::vector<double> losses;
      {
        LayeredRun first(world, config_of(layout, placement), layout.pipe);
        losses = train(first, kSteps / 2);
        first.made.engine->save_checkpoint(saved);
      }
      LayeredRun resumed(world, config_of(layout, placement), layout.pipe);
      ASSERT_TRUE(resumed.made.engine->load_checkpoint(saved)) << where;
      for (const double loss : train(resumed, kSteps / 2)) {
        losses.push_back(loss);
      }
      EXPECT_EQ(losses, expected) << where;
      const bool in_files = offload.optimizer.place == Place::nvme || offload.parameters.place == Place::nvme;
      EXPECT_EQ(resumed.made.engine->offload_traffic().has_value(), in_files) << where;
      if (in_files) {
        EXPECT_GT(resumed.made.engine->offload_traffic()->written, 0) << where; // a stage with few buckets reads none
      }
      const auto a = plain.model->named_parameters();
      const auto whole_of_plain = plain.made.engine->gather_parameters(plain.model->parameters());
      const auto whole = resumed.made.engine->gather_parameters(resumed.model->parameters());
      for (const auto& item : resumed.model->named_parameters()) {
        EXPECT_TRUE(item.value().equal(a[item.key()])) << where << ", " << item.key();
      }
    }
    world.group().barrier();
    EXPECT_TRUE(world.rank() != 0 || !fs::exists(scratch.path / "nvme" / "trireme.rank0"));
  });
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int stage : {1, 2, 3}) {
    const precision::Type type = stage == 2 ? precision::Type::fp32 : precision::Type::bf16;
    for (const int ranks : {1, 2, 4}) {
      all.push_back({ranks, 1, stage, type});
    }
    all.push_back({2, 2, stage, type});
    all.push_back({4, 2, stage, type});
  }
  all.push_back({2, 1, 3, precision::Type::fp32});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OffloadTest, testing::ValuesIn(layouts()),
                         [](const auto& info) { return name_of(info.param); });

// A model in one piece, whose units are Sharded modules or nothing.
TEST(OffloadPlaceTest, AModelInOnePieceTrainsAsInMemory) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](comm::World& world) {
      config::EngineConfig config = zero_config(stage, 1, 0.0);
      config.step_in_backward = stage < 2;
      SmallRun plain(world, config);
      config.offload = placed(Place::nvme, stage == 3 ? Place::nvme : Place::device, scratch.path);
      SmallRun files(world, config);
      for (int step = 0; step < 5; ++step) {
        EXPECT_EQ(files.engine().train_batch().item<double>(), plain.engine().train_batch().item<double>())
            << "stage " << stage << ", step " << step;
      }
    });
  }
}

// A skipped step leaves states as they are, wherever these are.
TEST(OffloadPlaceTest, Fp16WithSkippedStepsTrainsAsInMemory) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  on_ranks(2, [&](comm::World& world) {
    config::EngineConfig config = zero_config(3, 2);
    config.precision.compute = precision::Type::fp16;
    config.precision.loss_scale.initial_scale_power = 20; // too large at first
    SmallRun plain(world, config);
    config.offload = placed(Place::nvme, Place::nvme, scratch.path);
    SmallRun files(world, config);
    for (int step = 0; step < 12; ++step) {
      EXPECT_EQ(files.engine().train_batch().item<double>(), plain.engine().train_batch().item<double>())
          << "step " << step;
    }
    EXPECT_GT(files.engine().skipped_steps(), 0);
    EXPECT_EQ(files.engine().skipped_steps(), plain.engine().skipped_steps());
  });
}

TEST(OffloadPlaceTest, RefusesWhatCannotBe) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  on_ranks(1, [&](comm::World& world) {
    const auto refusal = [&](int stage, const offload::Options& offload) -> std::string {
      config::EngineConfig config = zero_config(stage);
      config.offload = offload;
      try {
        SmallRun run(world, config);
      } catch (const InputError& error) {
        return error.what();
      }
      return "not refused";
    };
    for (const Place place : {Place::host, Place::nvme}) {
      EXPECT_THAT(refusal(2, placed(Place::device, place, scratch.path)), HasSubstr("offload_param with ZeRO stage 2"));
    }
    offload::Options options = placed(Place::nvme, Place::device, scratch.path);
    options.optimizer.nvme_path.clear();
    EXPECT_THAT(refusal(1, options), HasSubstr("\"device\": \"nvme\" without \"nvme_path\""));
    options = placed(Place::nvme, Place::nvme, scratch.path);
    options.parameters.buffer_count = 2;
    EXPECT_THAT(refusal(3, options), HasSubstr("buffer_count of the parameters is 2"));
    config::EngineConfig config = zero_config(1);
    config.offload = placed(Place::nvme, Place::device, scratch.path);
    SmallRun first(world, config);
    EXPECT_THAT(refusal(1, config.offload), AllOf(HasSubstr("another engine of this process"), HasSubstr("nvme_path")));
  });
}

} // namespace
} // namespace trireme::engine
