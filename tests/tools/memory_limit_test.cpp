#include "shell.h"

#include <tests/support/limited_group.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::HasSubstr;

class MemoryLimitTest : public RunFolder {};

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
    return sh(concat(group.enter(), "OMP_NUM_THREADS=1 ", kTrireme, " train ", path("run.json"), " -n 4 --no-memory-check --out ", path("out" + std::to_string(stage)),
                     " --set model.layers=6 --set model.hidden=640 --set model.heads=8 --set training.steps=2 --set engine.zero_optimization.stage=", stage),
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

} // namespace
} // namespace trireme::tools
