#include <tests/support/folders.h>
#include <trireme/base/env.h>

#include "tests/support/command.h"
#include "tests/support/free_port.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::comm {
namespace {

const std::string kDemoProgram = "\"" + test::binary_dir() + "/tests/comm/comm_demo\"";

/// Starts three ranks `times` times. All they may write is their three lines.
void start_and_end(int times, const std::string& arguments, int lines, const std::string& forbidden) {
  for (int turn = 0; turn < times; ++turn) {
    const int port = test::free_port();
    const auto output = test::run_command(test::plain_start(kDemoProgram + arguments, 3, port)).second;
    ASSERT_EQ(std::count(output.begin(), output.end(), '\n'), lines) << "start " << turn << ": " << output;
    ASSERT_EQ(output.find(forbidden), std::string::npos) << "start " << turn << ": " << output;
  }
}

TEST(CleanEndTest, FiveStarts) {
  start_and_end(5, "", 3, "terminate");
}

TEST(CleanEndTest, AnExceptionThroughMainEndsCleanlyToo) {
  // Rank 1 throws after the sum, the others wait for it: two sums, one complaint, two errors that name rank 1.
  start_and_end(2, " --throw-on 1", 3 + 3, "terminate");
}

TEST(CleanEndTest, LongTwoHundredStarts) {
  if (!env::flag("TRIREME_LONG_TESTS")) {
    GTEST_SKIP() << "takes minutes; set TRIREME_LONG_TESTS=1";
  }
  start_and_end(200, "", 3, "terminate");
}

} // namespace
} // namespace trireme::comm
