// Optimizers whose masters and states are in files: the same bits as in memory, and the bytes of the formula.
#include "stored.h"

#include <tests/optim/flat_rank.h>

#include <gtest/gtest.h>

namespace trireme::offload {
namespace {

using optim::Rank;

std::unique_ptr<DiskStore> store_in(const fs::path& folder, const std::shared_ptr<Traffic>& traffic, bool pipelined,
                                    int64_t buffers) {
  return std::make_unique<DiskStore>(RankFolder::open(folder, 0),
                                     DiskOptions{.kind = "optimizer states",
                                                 .buffers = buffers,
                                                 .pipeline_read = pipelined,
                                                 .pipeline_write = pipelined,
                                                 .fast_init = true},
                                     traffic);
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
          expect_same_values(files, memory, optim::name(state_type));
        }
      }
    }
  }
}

// A step reads and writes what it steps once: each part of a bucket in whole blocks. LAMB needs the norms first, so it
// does it twice.
TEST(OffloadedOptimizerTest, AStepMovesTheBytesOfTheFormula) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const optim::Rule& rule : {optim::Rule(optim::AdamOptions{}), optim::Rule(optim::LambOptions{})}) {
      for (const bool pipelined : {false, true}) {
        bucket::NamedTensors parameters;
        for (const int64_t n : {5000, 100, 2300, 1500, 1024, 1800}) {
          parameters.emplace_back(concat("p", n), torch::ones({n}, type).set_requires_grad(true));
        }
        bucket::LayoutOptions layout;
        layout.bucket_bytes = layout.first_bucket_bytes = 1; // a bucket each
        bucket::FlatParameters flat(parameters, layout, optim::allocate);
        const auto traffic = std::make_shared<Traffic>();
        optim::FlatOptimizer optimizer(
            {&flat}, [](const bucket::TensorInfo&) { return optim::ParameterOptions{}; }, optim::options_of(rule),
            false, store_in(scratch.path, traffic, pipelined, 3));
        int64_t bytes = 0;
        for (const bucket::Bucket& bucket : flat.layout().buckets()) {
          bytes += (type == torch::kFloat32 ? 2 : 3) * aio::round_up(4 * bucket.numel());
        }
        const int64_t passes = optim::is_lamb(rule) ? 2 : 1;
        for (int64_t step = 1; step < 5; ++step) {
          const Traffic before = *traffic;
          for (int64_t i = 0; i < flat.count(); ++i) {
            flat.attach_zero_grad(i);
          }
          optimizer.begin_step(0.01, std::nullopt, 1);
          optimizer.prepare();
          for (int64_t b = 0; b < 6; ++b) {
            optimizer.step_bucket(0, b);
          }
          if (step > 1) { // in the first there was nothing to be read
            EXPECT_EQ(traffic->read - before.read, passes * bytes);
            EXPECT_EQ(traffic->written - before.written, passes * bytes);
          }
        }
      }
    }
  }
}

// When a step ends, the next one's first buckets are on their way: as many as there is memory for, besides one that is
// used and two that are written.
TEST(OffloadedOptimizerTest, MoreBuffersReadMoreOfTheNextStepAhead) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  constexpr int64_t kBuckets = 9;
  for (const auto& [buffers, ahead] :
       std::vector<std::pair<int64_t, int64_t>>{{3, 1}, {4, 1}, {5, 2}, {6, 3}, {kBuckets, 0}}) {
    bucket::NamedTensors parameters;
    for (int64_t i = 0; i < kBuckets; ++i) {
      parameters.emplace_back(concat("p", i), torch::ones({1024}).set_requires_grad(true));
    }
    bucket::LayoutOptions layout;
    layout.bucket_bytes = layout.first_bucket_bytes = 1; // a bucket each
    bucket::FlatParameters flat(parameters, layout, optim::allocate);
    const auto traffic = std::make_shared<Traffic>();
    optim::FlatOptimizer optimizer(
        {&flat}, [](const bucket::TensorInfo&) { return optim::ParameterOptions{}; },
        optim::options_of(optim::AdamOptions{}), false, store_in(scratch.path, traffic, true, buffers));
    for (int64_t i = 0; i < flat.count(); ++i) {
      flat.attach_zero_grad(i);
    }
    optimizer.begin_step(0.01, std::nullopt, 1);
    for (int64_t b = 0; b < kBuckets; ++b) {
      optimizer.step_bucket(0, b);
    }
    EXPECT_EQ(traffic->read, ahead * 2 * 4096)
        << buffers << " buffers"; // two states of a block each; before, nothing was there to be read
  }
}

// Memory of buffers is that of chunks, however large the largest parameter is: a vocabulary of 128k costs no gigabytes.
TEST(OffloadedOptimizerTest, BuffersDoNotGrowWithTheLargestBucket) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  constexpr int64_t kBuffers = 3;
  for (const int64_t numel : {kChunkElements / 2, 2 * kChunkElements, 5 * kChunkElements + 1000}) {
    bucket::FlatParameters flat({{"p", torch::ones({numel}).set_requires_grad(true)}}, {}, optim::allocate);
    auto owned = store_in(scratch.path, std::make_shared<Traffic>(), true, kBuffers);
    const DiskStore& store = *owned;
    optim::FlatOptimizer optimizer(
        {&flat}, [](const bucket::TensorInfo&) { return optim::ParameterOptions{}; },
        optim::options_of(optim::AdamOptions{}), false, std::move(owned));
    flat.attach_zero_grad(0);
    for (int64_t step = 1; step < 3; ++step) {
      optimizer.begin_step(0.01, std::nullopt, 1);
      optimizer.step_bucket(0, 0);
      EXPECT_LE(store.buffer_bytes(), kBuffers * 8 * kChunkElements) << numel;
    }
  }
}

} // namespace
} // namespace trireme::offload
