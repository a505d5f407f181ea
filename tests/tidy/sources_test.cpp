#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>
#include "tests/support/command.h"

#include <algorithm>
#include <filesystem>

namespace trireme {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> sources() {
  std::vector<fs::path> found;
  for (const char* top : {"trireme", "tools", "tests", "examples", "benchmarks"}) {
    if (!fs::exists(fs::path(test::source_dir()) / top)) {
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(test::source_dir()) / top)) {
      const std::string extension = entry.path().extension();
      if (extension == ".h" || extension == ".cpp" || extension == ".cu") {
        found.push_back(entry.path());
      }
    }
  }
  return found;
}

// Past 500 lines ask which second noun lives there.
TEST(SourcesTest, FilesHoldOneNoun) {
  ASSERT_GT(sources().size(), 50u);
  for (const fs::path& file : sources()) {
    const std::string text = read_file(file);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 500) << file;
  }
}

TEST(SourcesTest, HeadersHaveAGuardAndNoUsingNamespace) {
  for (const fs::path& file : sources()) {
    if (file.extension() != ".h" || file.string().find("/declarations/") != std::string::npos) {
      continue;
    }
    const std::string text = read_file(file);
    EXPECT_NE(text.find("#pragma once"), std::string::npos) << file;
    EXPECT_EQ(text.find("\nusing namespace"), std::string::npos) << file;
  }
}

TEST(SourcesTest, AreFormatted) {
  if (!fs::exists(test::source_dir() + "/.venv/bin/clang-format")) {
    GTEST_SKIP() << "there is no clang-format";
  }
  const auto [status, output] = test::run_command("'" + test::source_dir() + "/scripts/format' --check");
  EXPECT_EQ(status, 0) << "scripts/format formats what is not:\n" << output.substr(0, 2000);
}

} // namespace
} // namespace trireme
