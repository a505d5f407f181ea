#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme::bucket {

/// A byte range of a file.
struct Extent {
  std::filesystem::path file;
  int64_t offset = 0;
  int64_t bytes = 0;
};

} // namespace trireme::bucket
