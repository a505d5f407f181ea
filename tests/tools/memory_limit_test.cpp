#include "shell.h"

#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A control group of its own that holds at most so many bytes. Empty where this user may not make one.
class LimitedGroup {
 public:
  explicit LimitedGroup(int64_t bytes) {
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), std::pair("/sys/fs/cgroup", "memory.max")}) {
      const fs::path folder = fs::path(root) / concat("trireme_test_", getpid());
      std::error_code failed;
      if (!fs::exists(fs::path(root) / "cgroup.procs") || !fs::create_directory(folder, failed)) {
        continue;
      }
      folder_ = folder;
      if (std::ofstream(folder / limit) << bytes << std::flush) {
        return;
      }
      fs::remove(folder, failed);
      folder_.clear();
    }
  }
  ~LimitedGroup() {
    std::error_code ignored;
    fs::remove(folder_, ignored);
  }
  bool exists() const {
    return !folder_.empty();
  }
  /// Shell words that move the shell, and what it starts, into the group.
  std::string enter() const {
    return concat("echo $$ > ", (folder_ / "cgroup.procs").string(), " && ");
  }

 private:
  fs::path folder_;
};

// Where there is swap, a group that is too large is slow, not killed.
bool machine_swaps() {
  std::ifstream swaps("/proc/swaps");
  std::string line;
  return std::getline(swaps, line) && std::getline(swaps, line);
}

class MemoryLimitTest : public RunFolder {};

/// 30 million parameters on 4 ranks: 472 MB of states a rank at stage 0, 118 MB at stage 3; a limit between them.
TEST_F(MemoryLimitTest, StageThreeTrainsWhereStageZeroIsTooLarge) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const LimitedGroup group(2'000'000'000);
  if (!group.exists() || machine_swaps()) {
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
