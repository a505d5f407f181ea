#pragma once

#include <trireme/aio/probe.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace trireme::test {

/// For tests of what ranks hold of memory. The folder of temporary files is memory on many machines (tmpfs), and what is written there counts as the control group's: then the build tree has the files.
inline std::filesystem::path folder_on_disk() {
  const std::filesystem::path usual = testing::TempDir();
  const std::string is = aio::filesystem_of(usual);
  return is == "tmpfs" || is == "ramfs" ? std::filesystem::path(TRIREME_BINARY_DIR) : usual;
}

} // namespace trireme::test
