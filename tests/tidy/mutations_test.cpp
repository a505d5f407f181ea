// tests/sim_device/mutations.py is run by hand: its list must fit the sources when somebody does.
#include <tests/support/folders.h>
#include <trireme/base/error.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace trireme {
namespace {

TEST(MutationsTest, EachHasOnePlaceInTheSources) {
  std::FILE* const pipe =
      ::popen(concat("python3 '", test::source_dir(), "/tests/sim_device/mutations.py' --check 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  std::array<char, 4096> part{};
  for (size_t bytes = 0; (bytes = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    said.append(part.data(), bytes);
  }
  EXPECT_EQ(::pclose(pipe), 0) << said;
}

} // namespace
} // namespace trireme
