#pragma once

#include <trireme/base/error.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A folder of its own for each test, removed after it.
class TemporaryFolderTest : public testing::Test {
 protected:
  TemporaryFolderTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / concat("trireme_data_", ::getpid(), '_', test->name());
    std::filesystem::create_directories(folder_);
  }
  ~TemporaryFolderTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  /// Little-endian uint16, as nanoGPT's prepare.py writes them.
  std::filesystem::path write_tokens(const std::string& name, const std::vector<int>& tokens) const {
    std::string content;
    for (const int token : tokens) {
      content += static_cast<char>(token & 0xFF);
      content += static_cast<char>(token >> 8);
    }
    return write(name, content);
  }
  std::filesystem::path folder_;
};

/// What the InputError says; "" when `call` throws none.
template <typename Call>
std::string input_error(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

} // namespace trireme::data
