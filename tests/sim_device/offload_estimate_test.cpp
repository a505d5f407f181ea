// What `trireme estimate` says of a device and of its link, beside what a run on the simulated device has there and
// copies.
#include "sim_device.h"

#include <tests/support/run_ranks.h>
#include <tests/support/small_disk.h>
#include <tests/tools/small_training.h>

#include <trireme/base/error.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/run_estimate.h>

#include <gmock/gmock.h>

#include <tuple>

namespace trireme::tools {
namespace {

using estimate::Way;

constexpr int64_t kBatches = 16 << 10; // pinned memory of batches and scalars on their way, at most

struct Places {
  const char* states;
  const char* parameters;
  double ratio = 1;
};

class SimDeviceEstimateTest : public SmallTrainingTest {
 protected:
  static json run_of(const Places& places, bool bf16, const char* optimizer) {
    json run = common();
    run["model"]["layers"] = 6;
    run["model"]["hidden"] = 32;
    run["engine"]["bf16"] = {{"enabled", bf16}};
    run["engine"]["optimizer"]["type"] = optimizer;
    run["engine"]["zero_optimization"] = {
        {"stage", 3},
        {"stage3_param_persistence_threshold", 100},
        {"reduce_bucket_size", 1000},
        {"offload_optimizer",
         {{"device", places.states}, {"nvme_path", (folder() / "states").string()}, {"ratio", places.ratio}}},
        {"offload_param",
         {{"device", places.parameters}, {"nvme_path", (folder() / "parameters").string()}, {"max_in_cpu", 0}}}};
    return run;
  }
  struct Device {
    int64_t to_device = 0; // in a step
    int64_t to_host = 0;
    int64_t peak = 0;
    int64_t pinned = 0;  // on the host
    int64_t buffers = 0; // of the estimate's peak, that need not be there at the same time
  };
  // Twice as many steps less the first: what the start and the end copy does not count.
  static Device measured(comm::World& world, json run) {
    const auto copied = [&](int steps) {
      const sim::Copied before = sim::copied();
      run["training"] = {{"steps", steps}, {"checkpoint_every", 0}};
      run_training(world, run, false, sim::device());
      return Device{sim::copied().to_device - before.to_device, sim::copied().to_host - before.to_host};
    };
    const Device two = copied(2);
    const Device four = copied(4);
    return {(four.to_device - two.to_device) / 2, (four.to_host - two.to_host) / 2, sim::memory().peak,
            sim::pinned_memory().peak};
  }
  static Device estimated(json run) {
    run["training"]["device"] = "cuda";
    const estimate::Run described = plan::describe(read(run), 1).run;
    const estimate::StageMoves moves = estimate::moves_of(described).front();
    const estimate::StageMemory memory = estimate::memory_of(described).front();
    using estimate::Category;
    int64_t pinned = moves.host_bytes();
    for (const estimate::Item& item : moves.on_host) {
      pinned -= item.name == "buffers of files" && item.formula.ends_with("masters and states")
                    ? item.bytes
                    : 0; // the host alone uses them
    }
    return {moves.bytes(Way::to_device), moves.bytes(Way::to_host), memory.peak_on_device(), pinned,
            memory.item(Category::communication_buffers).bytes + memory.item(Category::offload_buffers).bytes};
  }
};

TEST_F(SimDeviceEstimateTest, IsWhatADeviceHasAndCopies) {
  const Places nothing{"none", "none"};
  for (const auto& [bf16, optimizer] :
       {std::pair(false, "AdamW"), std::pair(true, "AdamW"), std::pair(false, "Lamb")}) {
    for (const Places& places :
         {Places{"none", "cpu"}, Places{"none", "nvme"}, Places{"cpu", "cpu"}, Places{"cpu", "nvme", 0.5},
          Places{"nvme", "cpu", 0.5}, Places{"nvme", "nvme"}, Places{"nvme", "nvme", 0.5}}) {
      if (places.ratio < 1 && std::string(optimizer) == "Lamb") {
        continue; // refused
      }
      SCOPED_TRACE(concat("states ", places.states, ", parameters ", places.parameters, ", ratio ", places.ratio,
                          bf16 ? ", bf16, " : ", ", optimizer));
      test::on_ranks(1, [&, bf16 = bf16, optimizer = optimizer](comm::World& world) {
        sim::start();
        sim::use_cpu_optimizer_kernels();
        const json run = run_of(places, bf16, optimizer);
        const Device seen = measured(world, run);
        const Device expected = estimated(run);
        EXPECT_LE(seen.pinned, expected.pinned + kBatches);
        EXPECT_GE(seen.pinned, expected.pinned / 10 * 9);
        const json whole = run_of(nothing, bf16, optimizer);
        const Device plain = measured(world, whole); // copies batches and the loss; its peak is the higher one
        EXPECT_EQ(seen.to_device - plain.to_device, expected.to_device);
        EXPECT_EQ(seen.to_host - plain.to_host, expected.to_host);
        const int64_t saved = estimated(whole).peak - expected.peak;
        EXPECT_GE(plain.peak - seen.peak, saved) << "activations are the same";
        EXPECT_LE(plain.peak - seen.peak, saved + expected.buffers);
        EXPECT_THAT(sim::problems(), testing::IsEmpty());
      });
    }
  }
}

// A disk of the estimated size is enough for ranks, and a page less is not: they say so before they fill it.
TEST_F(SimDeviceEstimateTest, IsTheRoomThatRanksAskFor) {
  constexpr int64_t kPage = 4096;
  const fs::path mounted = folder() / "disk";
  for (const auto& [bf16, parameters, accumulation] : {std::tuple(true, "nvme", 2), std::tuple(false, "none", 1)}) {
    SCOPED_TRACE(parameters);
    json run = run_of({"nvme", parameters}, bf16, "AdamW");
    run["model"]["hidden"] = 64;
    run["training"] = {{"steps", 2}, {"checkpoint_every", 0}, {"device", "cuda"}};
    run["engine"]["gradient_accumulation_steps"] = accumulation;
    for (const char* const section : {"offload_optimizer", "offload_param"}) {
      run["engine"]["zero_optimization"][section]["nvme_path"] = (mounted / "nvme").string();
    }
    const int64_t need = estimate::moves_of(plan::describe(read(run), 1).run).front().disk_bytes();
    run["training"].erase("device");
    for (const bool enough : {true, false}) {
      const test::SmallDisk disk(mounted, (need + kPage - 1) / kPage * kPage - (enough ? 0 : kPage));
      if (!disk.exists()) {
        GTEST_SKIP() << "needs root to mount a small file system";
      }
      test::on_ranks(1, [&](comm::World& world) {
        sim::start();
        sim::use_cpu_optimizer_kernels();
        std::string said = "trained";
        try {
          run_training(world, run, false, sim::device());
        } catch (const InputError& error) {
          said = error.what();
        }
        EXPECT_THAT(said, testing::HasSubstr(enough ? "trained" : "4.10 kB too little"));
      });
    }
  }
}

// Activations on a device and on its host, whose pinned memory is taken in powers of two, as are the tensors of this
// model.
TEST_F(SimDeviceEstimateTest, ActivationsByTheirWays) {
  const auto run_of = [](const std::string& policy) {
    json run = common();
    run["model"].update({{"layers", 6}, {"hidden", 128}, {"sequence_length", 16}});
    run["training"] = {{"steps", 2}, {"checkpoint_every", 0}};
    run["engine"]["train_batch_size"] = 16;
    run["engine"]["activation_checkpointing"] = {{"policy", policy},
                                                 {"nvme_path", (folder() / "activations").string()}};
    return run;
  };
  for (const std::string policy : {"keep", "recompute", "host", "recompute_host", "nvme", "recompute_nvme"}) {
    SCOPED_TRACE(policy);
    test::on_ranks(1, [&](comm::World& world) {
      at::globalContext().setSDPUseFlash(false);
      sim::start();
      sim::use_cpu_optimizer_kernels();
      run_training(world, run_of(policy), false, sim::device());
      json described = run_of(policy);
      described["training"]["device"] = "cuda";
      const estimate::Run run = plan::describe(read(described), 1).run;
      const estimate::StageMemory memory = estimate::memory_of(run).front();
      const int64_t activations = memory.item(estimate::Category::activations).bytes;
      const int64_t seen = sim::memory().peak - (memory.peak_on_device() - activations);
      EXPECT_NEAR(static_cast<double>(activations) / static_cast<double>(seen), 1, 0.1);
      const int64_t on_host = estimate::moves_of(run).front().host_bytes();
      const int64_t pinned = sim::pinned_memory().peak;
      EXPECT_LE(pinned, on_host / 10 * 11 + kBatches) << "with what is padded";
      EXPECT_GE(pinned, policy.ends_with("nvme") ? 1 : on_host)
          << "of files at most so many parts are on their way, fewer where the disk is fast";
      EXPECT_THAT(sim::problems(), testing::IsEmpty());
    });
  }
}

} // namespace
} // namespace trireme::tools
