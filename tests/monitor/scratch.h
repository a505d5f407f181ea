#pragma once

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::monitor {

/// Gives each test a folder of its own.
class ScratchTest : public testing::Test {
 protected:
  ScratchTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                concat("trireme_monitor_", ::getpid(), '_',
                       testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }
  ~ScratchTest() override { std::filesystem::remove_all(folder_); }

  void put(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  /// Runs the script with test::python() and returns what it prints; a script
  /// that fails fails the test with its error output.
  std::string python(const std::string& script, const std::filesystem::path& argument) const {
    const std::string interpreter = test::python();
    put("script.py", script);
    const std::string command =
        concat('\'', interpreter, "' '", (folder_ / "script.py").string(), "' '", argument.string(), "' 2>&1");
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> block;
    for (size_t n; pipe != nullptr && (n = std::fread(block.data(), 1, block.size(), pipe)) > 0;) {
      output.append(block.data(), n);
    }
    const int status = pipe == nullptr ? -1 : ::pclose(pipe);
    EXPECT_EQ(status, 0) << interpreter << " failed; ./test installs what requirements-test.txt lists. It said:\n"
                         << output;
    return output;
  }

  std::filesystem::path folder_;
};

} // namespace trireme::monitor
