#include "shell.h"

#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A limit on the size of any file stands for a full disk everywhere; with root, a real small file system too.
class FullDiskTest : public RunFolder {};

TEST_F(FullDiskTest, ALaterSaveThatFailsLosesNothingSavedBefore) {
  ASSERT_EQ(train("-n 2 --set training.steps=5").status, 0);
  const std::string before = read_file(folder / "out/checkpoints/global_step5/manifest.json");
  // The states are 30 kB a rank; metrics stay below.
  const std::string_view without_shadow =
      test::kThreadSanitizer ? "TMPDIR=/nonexistent " : ""; // where ThreadSanitizer keeps a file
  const Finished run = sh(concat("trap \"\" XFSZ; ulimit -f 32; ", without_shadow, kTrireme, " train ",
                                 path("run.json"), " -n 2 --resume --out ", path("out")));
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("checkpoint at step 10 failed, training goes on"));
  EXPECT_THAT(run.output, HasSubstr("training is done but the last checkpoint could not be saved"));
  EXPECT_EQ(read_file(folder / "out/checkpoints/global_step5/manifest.json"), before);
  EXPECT_EQ(read_file(folder / "out/checkpoints/latest").substr(0, 12), "global_step5");
  const Finished resumed = train("-n 2 --resume");
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("at step 5"));
}

TEST_F(FullDiskTest, ATraceThatCannotBeWrittenEndsNothing) {
  fs::create_directories(folder / "out/trace.rank1.json/in the way");
  const Finished run = train("-n 2 --trace 3 --set training.steps=5");
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("there is no trace: 1 rank could not write theirs"));
  EXPECT_FALSE(fs::exists(folder / "out/trace.json"));
  EXPECT_FALSE(fs::exists(folder / "out/trace.rank0.json"));
  EXPECT_TRUE(fs::exists(folder / "out/checkpoints/global_step5"));
}

TEST_F(FullDiskTest, ATraceThatCannotBeMergedLeavesThoseOfTheRanks) {
  fs::create_directories(folder / "out/trace.json/in the way");
  const Finished run = train("-n 2 --trace 3 --set training.steps=5");
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("the traces of the ranks stay in "));
  EXPECT_TRUE(fs::exists(folder / "out/trace.rank0.json"));
  EXPECT_TRUE(fs::exists(folder / "out/trace.rank1.json"));
}

// The page of the start is still there, and says that nothing has been recorded.
TEST_F(FullDiskTest, AnOldReportIsNotNamedAtTheEnd) {
  const fs::path mount = folder / "tiny";
  fs::create_directories(mount);
  if (::geteuid() != 0 || sh(concat("mount -t tmpfs -o size=64k tmpfs ", mount.string())).status != 0) {
    GTEST_SKIP() << "needs root to mount a small file system";
  }
  const Finished run = sh(concat(kTrireme, " train ", path("run.json"), " -n 1 --out ", (mount / "out").string()));
  sh(concat("umount -l ", mount.string()));
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("no report could be written"), Not(HasSubstr("report: /"))));
}

TEST_F(FullDiskTest, ARealFullFileSystemSaysWhatItNeeds) {
  const fs::path mount = folder / "small";
  fs::create_directories(mount);
  if (::geteuid() != 0 || sh(concat("mount -t tmpfs -o size=900k tmpfs ", mount.string())).status != 0) {
    GTEST_SKIP() << "needs root to mount a small file system";
  }
  const Finished run = sh(concat(kTrireme, " train ", path("run.json"), " -n 2 --out ", (mount / "out").string()));
  const bool latest = fs::exists(mount / "out/checkpoints/latest");
  const Finished inspected = sh(concat(kTrireme, " inspect ", (mount / "out/checkpoints").string()));
  sh(concat("umount -l ", mount.string()));
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("No space left on device"));
  if (latest) {
    EXPECT_EQ(inspected.status, 0) << inspected.output;
  }
}

} // namespace
} // namespace trireme::tools
