#pragma once

#include <tests/support/folders.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace trireme::tidy {

inline const std::filesystem::path kRoot = test::source_dir();

/// Files below a folder of the repository, sorted.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder,
                                                      const std::set<std::string>& extensions) {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / folder)) {
    if (entry.is_regular_file() && extensions.count(entry.path().extension()) == 1) {
      out.push_back(entry.path());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The pages for readers. CHANGELOG.md is not one: it keeps what earlier releases were.
inline std::vector<std::filesystem::path> pages() {
  std::vector<std::filesystem::path> out = {kRoot / "README.md", kRoot / "ARCHITECTURE.md", kRoot / "CONTRIBUTING.md"};
  for (const char* folder : {"docs", "examples"}) {
    for (const std::filesystem::path& file : files_below(folder, {".md"})) {
      out.push_back(file);
    }
  }
  return out;
}

} // namespace trireme::tidy
