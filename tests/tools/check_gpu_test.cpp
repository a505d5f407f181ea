// scripts/check_gpu where there is no GPU: its runs are possible, and it says what is not as it should be.
#include "run_folder_on_disk.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

class CheckGpuTest : public RunFolderOnDisk {
 protected:
  /// A program trireme that does `before` first.
  std::string program_that(const std::string& before) const {
    const std::string program = path("programs/trireme");
    std::filesystem::create_directories(folder / "programs");
    write_file_atomically(program,
                          concat("#!/bin/sh\n", before, "\nexec \"" + test::binary_dir() + "/bin/trireme\" \"$@\"\n"));
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return concat("--bin ", path("programs"), ' ');
  }
  Finished check(const std::string& arguments) const {
    return sh(concat("python3 \"" + test::source_dir() + "/scripts/check_gpu\" --jobs 1 --bin \"" + test::binary_dir() +
                         "/bin\" --folder ",
                     path("runs"), " --set model.hidden=64 --set model.sequence_length=32 ", arguments),
              500);
  }
};

TEST_F(CheckGpuTest, RunsAreWhatTheyAreComparedWith) {
  const Finished finished = check("--device cpu resumed 2-ranks-zero-bubble");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("4 passed, 0 failed"));
}

TEST_F(CheckGpuTest, ARunOfWhichARankIsKilledIsAsOneOfWhichNoneIs) {
  const Finished finished = check("--device cpu 2-ranks-killed-pipeline");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("4 passed, 0 failed"));
}

TEST_F(CheckGpuTest, ARunThatFailsIsSaid) {
  const Finished finished = check("--device cuda:99 again");
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, HasSubstr("1 passed, 2 failed"));
  EXPECT_THAT(finished.output, HasSubstr("FAILED exit status 2"));
}

TEST_F(CheckGpuTest, AnotherLossIsSaid) {
  const std::string another_seed = program_that("case $2 in *again*) set -- \"$@\" --set training.seed=8;; esac");
  const Finished finished = check(concat("--device cpu ", another_seed, "again"));
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("2 passed, 1 failed"));
}

TEST_F(CheckGpuTest, ARunOfWhichNoRankWasKilledIsSaid) {
  const Finished finished =
      check(concat("--device cpu ", program_that("unset TRIREME_FAULT"), "2-ranks-killed-pipeline"));
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("FAILED no rank was killed and started again"));
  EXPECT_THAT(finished.output, HasSubstr("3 passed, 1 failed"));
}

TEST_F(CheckGpuTest, UnknownNamesAreRefused) {
  const Finished finished = check("zero-9");
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, HasSubstr("no run is named so. There are: cpu cuda again"));
  EXPECT_THAT(finished.output, Not(HasSubstr("passed")));
}

} // namespace
} // namespace trireme::tools
