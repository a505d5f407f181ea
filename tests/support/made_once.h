#pragma once

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

namespace trireme::test {

/// A folder that the tests of a program share. make(folder) runs for the first of them, and again if that failed. Each
/// test is a process of its own (main.cpp), so SetUpTestSuite() would run for each. main.cpp removes the folder.
inline std::filesystem::path made_once(const std::string& name,
                                       const std::function<void(const std::filesystem::path&)>& make) {
  namespace fs = std::filesystem;
  const char* parent = std::getenv("TRIREME_TEST_MADE");
  if (parent == nullptr) {
    throw Error("test", "TRIREME_TEST_MADE is not set", "Link tests/support/main.cpp.");
  }
  const fs::path folder = fs::path(parent) / name;
  const fs::path done = fs::path(parent) / (name + ".done");
  if (!fs::exists(done)) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    make(folder);
    if (!testing::Test::HasFailure()) {
      write_file_atomically(done, "");
    }
  }
  return folder;
}

} // namespace trireme::test
