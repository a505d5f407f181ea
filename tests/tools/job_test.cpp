// Programs that `trireme doctor` starts: their output comes back, and none outlives its deadline.
#include "../../tools/trireme/job.h"

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using std::chrono::seconds;

TEST(JobTest, OutputErrorsAndStatusComeBack) {
  const JobResult result =
      run_job({"sh", "-c", "echo $WORD; echo lost >&2; cat; exit 3"}, {{"WORD", "found"}}, seconds(60));
  EXPECT_EQ(result.output, "found\n");
  EXPECT_EQ(result.errors, "lost\n");
  EXPECT_EQ(result.status, 3);
  EXPECT_FALSE(result.killed);
  EXPECT_EQ(run_job({"/no/such/program"}, {}, seconds(60)).status, 127);
}

TEST(JobTest, MuchOutputDoesNotBlockTheProgram) {
  const JobResult result =
      run_job({"sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo end >&2"}, {}, seconds(60));
  EXPECT_EQ(result.status, 0);
  EXPECT_GE(result.output.size(), 1u << 20);
}

TEST(JobTest, WhatDoesNotEndIsKilled) {
  for (const char* program :
       {"sleep 1000", "trap '' TERM; while true; do sleep 1; done", "exec >&- 2>&-; sleep 1000"}) {
    const auto begin = std::chrono::steady_clock::now();
    const JobResult result = run_job({"sh", "-c", program}, {}, std::chrono::milliseconds(200));
    EXPECT_TRUE(result.killed) << program;
    EXPECT_GE(result.status, 128) << program;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30)) << program;
  }
}

} // namespace
} // namespace trireme::tools
