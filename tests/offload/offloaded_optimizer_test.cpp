// Optimizers whose masters and states are in files: the same bits as in memory, and the bytes of the formula.
#include "stored.h"

#include <tests/optim/flat_rank.h>

#include <gtest/gtest.h>

namespace trireme::offload {
namespace {

using optim::Rank;

std::unique_ptr<DiskStore> store_in(const fs::path& folder, const std::shared_ptr<Traffic>& traffic, bool pipelined, int64_t buffers) {
  return std::make_unique<DiskStore>(RankFolder::open(folder, 0),
                                     DiskOptions{.kind = "optimizer states", .buffers = buffers, .pipeline_read = pipelined, .pipeline_write = pipelined, .fast_init = true}, traffic);
}

TEST(OffloadedOptimizerTest, EveryRuleTrainsAsInMemory) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const optim::StateType state_type : {optim::StateType::fp32, optim::StateType::bf16, optim::StateType::int8}) {
      for (const optim::Rule& rule : optim::kRules) {
        if (optim::is_lamb(rule) && state_type == optim::StateType::int8) {
          continue;
        }
        for (const bool pipelined : {false, true}) {
          const optim::OptimizerOptions options = optim::options_of(rule, state_type);
          Rank memory(options, 0, 1, type);
          Rank files(options, 0, 1, type, store_in(scratch.path, std::make_shared<Traffic>(), pipelined, 3));
          memory.run(1, 3);
          files.run(1, 3);
          files.load_states(files.states()); // what a checkpoint does
          memory.run(4, 6);
          files.run(4, 6);
          EXPECT_TRUE(torch::equal(files.flat().flat_data(), memory.flat().flat_data())) << memory.optimizer().rule().name() << ' ' << optim::name(state_type);
          const auto expected = memory.states();
          for (const auto& [name, tensor] : files.states()) {
            EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
          }
        }
      }
    }
  }
}

// A step reads and writes what it steps once: each part of a bucket in whole blocks. LAMB needs the norms first, so it does it twice.
TEST(OffloadedOptimizerTest, AStepMovesTheBytesOfTheFormula) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const optim::Rule& rule : {optim::Rule(optim::AdamOptions{}), optim::Rule(optim::LambOptions{})}) {
      for (const bool pipelined : {false, true}) {
        const auto traffic = std::make_shared<Traffic>();
        Rank rank(optim::options_of(rule), 0, 1, type, store_in(scratch.path, traffic, pipelined, 3));
        ASSERT_GT(rank.flat().layout().buckets().size(), 3u);
        int64_t bytes = 0;
        for (const bucket::Bucket& bucket : rank.flat().layout().buckets()) {
          bytes += (type == torch::kFloat32 ? 2 : 3) * aio::round_up(4 * bucket.numel());
        }
        const int64_t passes = optim::is_lamb(rule) ? 2 : 1;
        rank.run(1, 1);
        for (int64_t step = 2; step < 5; ++step) {
          const Traffic before = *traffic;
          rank.run(step, step);
          EXPECT_EQ(traffic->read - before.read, passes * bytes);
          EXPECT_EQ(traffic->written - before.written, passes * bytes);
        }
      }
    }
  }
}

} // namespace
} // namespace trireme::offload
