// Models that the memory at hand does not hold train from files, to the same bits.
#include "layered_run.h"

#include <trireme/base/file.h>
#include <trireme/memory/aio/file.h>

#include <tests/support/folder_on_disk.h>
#include <tests/support/limited_group.h>
#include <tests/support/run_ranks.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

#include <malloc.h>
#include <sys/mman.h>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::Contains;
using testing::HasSubstr;

constexpr int64_t kLimit = 128 << 20;
constexpr int kLargeSteps = 2;

/// 69 million parameters in layers of 3 MB.
models::GptOptions large_gpt() {
  models::GptOptions options = small_gpt();
  options.layers = 88;
  options.hidden = 256;
  options.heads = 4;
  return options;
}

/// Losses of a few steps in fp32: 4 bytes a parameter, as many of gradients, and 8 of states.
std::vector<double> train_large(comm::World& world, const offload::Options& offload) {
  torch::set_num_threads(1);
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10); // else malloc keeps what a layer leaves
  config::EngineConfig config = small_config(1, 1, 0.0);
  config.zero.stage = 3;
  config.zero.param_persistence_threshold = 1000;
  config.offload = offload;
  LayeredRun run(world, config, 1, large_gpt());
  EXPECT_GT(4 * run.engine().num_parameters(), 2 * kLimit) << "parameters";
  EXPECT_GT(8 * run.engine().num_parameters(), 4 * kLimit) << "states";
  std::vector<double> losses;
  for (int step = 0; step < kLargeSteps; ++step) {
    losses.push_back(run.step());
  }
  return losses;
}

TEST(OffloadMemoryTest, AModelOfSeveralTimesTheMemoryTrainsFromFiles) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const ScratchFolder scratch(make_scratch_folder("trireme_offload", test::folder_on_disk()));
  if (!aio::File::create(scratch.path / "probe", 4096).direct()) {
    GTEST_SKIP() << "files of " << scratch.path << " go through the page cache, which counts as memory";
  }
  const test::LimitedGroup group(kLimit);
  if (!group.exists() || test::machine_swaps()) {
    GTEST_SKIP() << "this user may not make control groups, or the machine swaps";
  }
  auto* const expected =
      static_cast<double*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(expected, MAP_FAILED);
  on_ranks(1, [&](comm::World& world) { std::ranges::copy(train_large(world, {}), expected); });
  EXPECT_THAT(run_ranks(1,
                        [&](comm::World& world) {
                          group.join();
                          train_large(world, {});
                        }),
              Contains(HasSubstr("signal 9")))
      << "in memory it does not fit";
  on_ranks(1, [&](comm::World& world) {
    group.join();
    offload::Options offload;
    offload.optimizer.place = offload.parameters.place = offload::Place::nvme;
    offload.optimizer.nvme_path = offload.parameters.nvme_path = scratch.path;
    offload.optimizer.buffer_count = offload.parameters.buffer_count = 3;
    offload.optimizer.pipeline_read = offload.optimizer.pipeline_write = offload.optimizer.fast_init = true;
    offload.parameters.max_in_cpu = 0;
    const std::vector<double> losses = train_large(world, offload);
    EXPECT_EQ(losses, std::vector<double>(expected, expected + kLargeSteps));
  });
  ::munmap(expected, 4096);
}

} // namespace
} // namespace trireme::engine
