#pragma once

#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <string>

namespace trireme::test {

/// Expects each line of C++ on a page of the documentation to be a line of one of the tests, which run it; returns how many there are. Paths start at the source folder.
/// A line "..." stands for code of the reader's.
inline int code_lines_of(const std::filesystem::path& page, std::initializer_list<const char*> sources) {
  const std::filesystem::path root = TRIREME_SOURCE_DIR;
  const auto stripped = [](const std::string& line) { return line.substr(std::min(line.find_first_not_of(' '), line.size())); };
  std::set<std::string> here;
  for (const char* source : sources) {
    for (const std::string& line : split(read_file(root / source), '\n')) {
      here.insert(stripped(line));
    }
  }
  bool code = false;
  int lines = 0;
  for (const std::string& line : split(read_file(root / page), '\n')) {
    if (line.starts_with("```")) {
      code = line == "```cpp";
    } else if (code && line != "...") {
      ++lines;
      EXPECT_EQ(here.count(stripped(line)), 1u) << line;
    }
  }
  return lines;
}

} // namespace trireme::test
