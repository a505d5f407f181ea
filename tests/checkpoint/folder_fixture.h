#pragma once

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::checkpoint {

namespace fs = std::filesystem;

/// A folder for one test, removed after it.
class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string name = (fs::path(testing::TempDir()) / "trireme_checkpoint_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~FolderTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  fs::path folder_;
};

inline std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put_content(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// The message of the E that `action` throws, "" when it throws none. Anything else escapes and fails the test.
template <typename E, typename F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

} // namespace trireme::checkpoint
