#include "run_folder_on_disk.h"

#include <tests/support/limited_group.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::HasSubstr;

class MemoryLimitTest : public RunFolderOnDisk {};

/// 30 million parameters on 4 ranks: 472 MB of states a rank at stage 0, 118 MB at stage 3; a limit between them.
TEST_F(MemoryLimitTest, StageThreeTrainsWhereStageZeroIsTooLarge) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const test::LimitedGroup group(2'000'000'000);
  if (!group.exists() || test::machine_swaps()) {
    GTEST_SKIP() << "this user may not make control groups, or the machine swaps";
  }
  const auto train = [&](int stage) {
    return sh(concat(group.enter(), "OMP_NUM_THREADS=1 ", kTrireme, " train ", path("run.json"),
                     " -n 4 --no-memory-check --out ", path("out" + std::to_string(stage)),
                     " --set model.layers=6 --set model.hidden=640 --set model.heads=8 --set training.steps=2 --set "
                     "engine.zero_optimization.stage=",
                     stage),
              200);
  };
  const Finished whole = train(0);
  EXPECT_NE(whole.status, 0);
  EXPECT_THAT(whole.output, HasSubstr("was killed by the kernel because memory ran out"));
  EXPECT_THAT(whole.output, HasSubstr("perhaps this one")) << "all ranks share the group";
  EXPECT_THAT(whole.output, HasSubstr("a higher ZeRO stage"));
  const Finished sharded = train(3);
  EXPECT_EQ(sharded.status, 0) << sharded.output;
  EXPECT_THAT(sharded.output, HasSubstr("step 2/2"));
}

/// Two ranks that allocate 340 MB, and had 470 with libtorch's allocator, whose freed blocks malloc cannot use again.
TEST_F(MemoryLimitTest, FreedActivationsAreUsedAgain) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const test::LimitedGroup group(400'000'000);
  if (!group.exists() || test::machine_swaps()) {
    GTEST_SKIP() << "this user may not make control groups, or the machine swaps";
  }
  const Finished trained =
      sh(concat(group.enter(), "OMP_NUM_THREADS=1 ", kTrireme, " train ", path("run.json"), " -n 2 --out ", path("out"),
                " --set model.layers=4 --set model.hidden=256 --set model.heads=8 --set model.sequence_length=128 "
                "--set model.vocab_size=2048 --set engine.train_batch_size=16"
                " --set engine.train_micro_batch_size_per_gpu=8 --set parallel.tensor=2 --set "
                "parallel.sequence_parallel=true --set training.steps=6"),
         200);
  EXPECT_EQ(trained.status, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("step 6/6"));
}

/// Two ranks read 1.25 GB of tokens, all of them once and then samples at random, where they may have 400 MB together.
TEST_F(MemoryLimitTest, ACorpusLargerThanTheLimitTrains) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const test::LimitedGroup group(400'000'000);
  if (!group.exists() || test::machine_swaps()) {
    GTEST_SKIP() << "this user may not make control groups, or the machine swaps";
  }
  std::filesystem::resize_file(folder / "tokens.bin", 1'250'000'000); // zeros that take no room on the disk
  const Finished trained =
      sh(concat(group.enter(), "OMP_NUM_THREADS=1 ", kTrireme, " train ", path("run.json"), " -n 2 --out ", path("out"),
                " --set model.layers=1 --set model.sequence_length=512 --set training.steps=4"),
         200);
  EXPECT_EQ(trained.status, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("step 4/4"));
}

} // namespace
} // namespace trireme::tools
