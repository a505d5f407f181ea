#pragma once

#include <tests/support/folders.h>
#include <trireme/memory/aio/probe.h>

#include <gtest/gtest.h>

#include <filesystem>

namespace trireme::test {

/// For tests of what ranks hold of memory. The folder of temporary files is memory on many machines (tmpfs), and what
/// is written there counts as the control group's: then the build tree has the files.
inline std::filesystem::path folder_on_disk() {
  const std::filesystem::path usual = testing::TempDir();
  return aio::is_memory(aio::filesystem_of(usual)) ? std::filesystem::path(test::binary_dir()) : usual;
}

} // namespace trireme::test
