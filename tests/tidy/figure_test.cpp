// docs/folders.svg, the figure of ARCHITECTURE.md, is drawn from the includes: it must be what they are today.
#include <tests/support/folders.h>
#include <trireme/base/file.h>

#include <gtest/gtest.h>
#include "tests/support/command.h"

namespace trireme {
namespace {

TEST(FigureTest, IsDrawnFromTodaysIncludes) {
  const auto [status, drawn] = test::run_command("python3 '" + test::source_dir() + "/scripts/structure' --draw -");
  ASSERT_EQ(status, 0) << drawn;
  EXPECT_TRUE(drawn == read_file(test::source_dir() + "/docs/folders.svg"))
      << "Run scripts/structure --draw docs/folders.svg and look at the difference.";
}

} // namespace
} // namespace trireme
